"""Tables of rules as text."""

import pytest

from brokerhouse.common.text_table import read_lists, read_table, word_set


def test_a_cell_is_found_by_its_row_and_column() -> None:
    table = read_table("""
              open   closed
        push  stays  opens
        lock  fails  stays
    """)

    assert table == {
        "push": {"open": "stays", "closed": "opens"},
        "lock": {"open": "fails", "closed": "stays"},
    }


@pytest.mark.parametrize("row", ["lock fails", "lock fails stays stays", "push stays opens"])
def test_a_row_with_other_columns_or_that_is_there_already_is_refused(row: str) -> None:
    with pytest.raises(ValueError, match=r"zip|twice"):
        read_table(f"""
                  open   closed
            push  stays  opens
            {row}
        """)


def test_a_column_or_a_list_that_is_there_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="a column is there twice"):
        read_table("open open\npush stays opens")
    with pytest.raises(ValueError, match="the list Some is there twice"):
        read_lists("Some: one\nSome: two")


def test_a_list_goes_on_in_indented_lines() -> None:
    lists = read_lists("""
Two words: one two
Many: three four
    five
Nothing:
""")

    assert lists == {"Two words": ("one", "two"), "Many": ("three", "four", "five"), "Nothing": ()}
    assert list(lists) == ["Two words", "Many", "Nothing"]


def test_a_set_of_words_has_each_word_of_the_text() -> None:
    assert word_set("\n    one two\n    three\n") == {"one", "two", "three"}
