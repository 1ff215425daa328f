import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;

/** Prints what a query answers, one row a line, with tabs: arguments are a REST catalog, an S3 server, the query. */
public final class ReadIceberg {
    public static void main(String[] arguments) throws Exception {
        String catalog = "spark.sql.catalog.lake";
        try (SparkSession spark = SparkSession.builder()
                .master("local[1]")
                .config("spark.ui.enabled", "false")
                .config("spark.driver.bindAddress", "127.0.0.1")
                .config("spark.driver.host", "127.0.0.1")
                .config(catalog, "org.apache.iceberg.spark.SparkCatalog")
                .config(catalog + ".type", "rest")
                .config(catalog + ".uri", arguments[0])
                .config(catalog + ".io-impl", "org.apache.iceberg.aws.s3.S3FileIO")
                .config(catalog + ".s3.endpoint", arguments[1])
                .config(catalog + ".s3.path-style-access", "true")
                .getOrCreate()) {
            for (Row row : spark.sql(arguments[2]).collectAsList())
                System.out.println("row\t" + row.mkString("\t"));
        }
    }
}
