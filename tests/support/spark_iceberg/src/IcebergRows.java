import java.nio.charset.StandardCharsets;
import java.io.PrintStream;
import java.util.List;
import org.apache.spark.sql.SparkSession;

/**
 * Runs queries on the tables of a catalog in SQLite: `IcebergRows CATALOG SQLITE-URI WAREHOUSE QUERY...`. Prints a line
 * for each query: its rows as an array of JSON objects. Spark writes its log to standard error.
 */
public final class IcebergRows {
    public static void main(String[] arguments) {
        String catalog = "spark.sql.catalog." + arguments[0];
        SparkSession spark = SparkSession.builder()
            .master("local[1]")
            .config("spark.ui.enabled", false)
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.shuffle.partitions", 1)
            .config("spark.sql.jsonGenerator.ignoreNullFields", false)
            .config(catalog, "org.apache.iceberg.spark.SparkCatalog")
            .config(catalog + ".type", "jdbc")
            .config(catalog + ".uri", arguments[1])
            .config(catalog + ".warehouse", arguments[2])
            .config(catalog + ".jdbc.schema-version", "V1")
            .getOrCreate();
        spark.sparkContext().setLogLevel("ERROR");
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String query : List.of(arguments).subList(3, arguments.length)) {
            out.println(spark.sql(query).toJSON().collectAsList());
        }
        spark.stop();
    }
}
