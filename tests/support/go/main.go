// ClickHouse's unmodified Go driver over HTTP, driven by tests: one JSON request per line on stdin, one JSON answer per
// line on stdout. Every request opens a connection of its own and closes it.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"reflect"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
)

type request struct {
	Verb        string
	Address     string
	User        string
	Password    string
	Database    string
	Compression string // none is the driver's default
	SQL         string
	Parameters  []any
	Rows        [][]any
}

var methods = map[string]clickhouse.CompressionMethod{
	"none":    clickhouse.CompressionNone,
	"lz4":     clickhouse.CompressionLZ4,
	"zstd":    clickhouse.CompressionZSTD,
	"gzip":    clickhouse.CompressionGZIP,
	"deflate": clickhouse.CompressionDeflate,
	"br":      clickhouse.CompressionBrotli,
}

func open(r request) (driver.Conn, error) {
	options := &clickhouse.Options{Addr: []string{r.Address}, Protocol: clickhouse.HTTP}
	options.Auth = clickhouse.Auth{Username: r.User, Password: r.Password, Database: r.Database}
	if r.Compression != "" {
		options.Compression = &clickhouse.Compression{Method: methods[r.Compression], Level: 3}
	}
	return clickhouse.Open(options)
}

func version(connection driver.Conn) (any, error) {
	if err := connection.Ping(context.Background()); err != nil {
		return nil, err
	}
	found, err := connection.ServerVersion()
	if err != nil {
		return nil, err
	}
	return found.String(), nil
}

// The rows of a query, each a list of its columns.
func query(connection driver.Conn, r request) (any, error) {
	rows, err := connection.Query(context.Background(), r.SQL, r.Parameters...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	found := [][]any{}
	for rows.Next() {
		var row []any
		for _, column := range rows.ColumnTypes() {
			row = append(row, reflect.New(column.ScanType()).Interface())
		}
		if err := rows.Scan(row...); err != nil {
			return nil, err
		}
		found = append(found, row)
	}
	return found, rows.Err()
}

// Inserts the rows, of an integer and a text each, as one batch.
func insert(connection driver.Conn, r request) (any, error) {
	batch, err := connection.PrepareBatch(context.Background(), r.SQL)
	if err != nil {
		return nil, err
	}
	for _, row := range r.Rows {
		if err := batch.Append(int64(row[0].(float64)), row[1].(string)); err != nil {
			return nil, err
		}
	}
	return len(r.Rows), batch.Send()
}

func answer(r request) (any, error) {
	connection, err := open(r)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	switch r.Verb {
	case "version":
		return version(connection)
	case "query":
		return query(connection, r)
	case "insert":
		return insert(connection, r)
	}
	return nil, fmt.Errorf("unknown verb %q", r.Verb)
}

func main() {
	requests := bufio.NewReader(os.Stdin)
	answers := json.NewEncoder(os.Stdout)
	for {
		line, err := requests.ReadBytes('\n')
		if err != nil {
			return
		}
		var r request
		if err := json.Unmarshal(line, &r); err != nil {
			panic(err)
		}
		found, err := answer(r)
		if err != nil {
			answers.Encode(map[string]string{"error": err.Error()})
		} else {
			answers.Encode(map[string]any{"ok": found})
		}
	}
}
