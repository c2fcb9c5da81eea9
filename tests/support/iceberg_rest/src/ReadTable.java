import java.util.StringJoiner;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.BaseTable;
import org.apache.iceberg.StaticTableOperations;
import org.apache.iceberg.Table;
import org.apache.iceberg.data.IcebergGenerics;
import org.apache.iceberg.data.Record;
import org.apache.iceberg.hadoop.HadoopFileIO;
import org.apache.iceberg.io.CloseableIterable;

/** Prints the rows of a table of numbers and words, by its metadata file, as lines of JSON. */
public final class ReadTable {
  public static void main(String[] arguments) throws Exception {
    HadoopFileIO files = new HadoopFileIO(new Configuration());
    Table table = new BaseTable(new StaticTableOperations(arguments[0], files), "table");
    try (CloseableIterable<Record> rows = IcebergGenerics.read(table).build()) {
      for (Record row : rows) {
        StringJoiner fields = new StringJoiner(", ", "{", "}");
        for (int place = 0; place < row.size(); place++) {
          Object value = row.get(place);
          String name = row.struct().fields().get(place).name();
          fields.add("\"" + name + "\": " + (value instanceof String ? "\"" + value + "\"" : value));
        }
        System.out.println(fields);
      }
    }
  }
}
