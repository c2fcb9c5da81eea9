import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.ResultSetMetaData;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.Properties;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;

/**
 * ClickHouse's unmodified JDBC driver, driven by tests: one JSON request per line on stdin, one JSON answer per line on
 * stdout. It has one connection at a time, and calls what DBeaver and Metabase call.
 */
public final class Jdbc {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static Connection connection;
    private static Statement started;
    private static CompletableFuture<JsonNode> startedAnswer;

    public static void main(String[] arguments) throws IOException {
        PrintStream answers = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        System.setOut(System.err); // nothing but answers may reach stdout
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                answer.set("ok", answer(JSON.readTree(line)));
            } catch (Throwable failure) {
                failure.printStackTrace();
                answer.put("error", failure.toString());
            }
            answers.println(JSON.writeValueAsString(answer));
        }
    }

    private static JsonNode answer(JsonNode request) throws Throwable {
        return switch (request.get("verb").asText()) {
            case "open" -> open(request);
            case "metadata" -> metadata(request);
            case "is_valid" -> JSON.valueToTree(connection.isValid(5));
            case "query" -> query(request);
            case "insert" -> insert(request);
            case "start" -> start(request);
            case "cancel" -> cancel();
            default -> throw new IllegalArgumentException("unknown verb: " + request);
        };
    }

    private static JsonNode open(JsonNode request) throws SQLException {
        if (connection != null) {
            connection.close();
        }
        Properties properties = new Properties();
        request.get("properties").properties().forEach(one -> properties.setProperty(one.getKey(), one.getValue().asText()));
        connection = DriverManager.getConnection(request.get("url").asText(), properties);
        return JSON.nullNode();
    }

    /** What a method of DatabaseMetaData returns: rows, or a value. */
    private static JsonNode metadata(JsonNode request) throws Throwable {
        JsonNode given = request.get("arguments");
        for (Method method : DatabaseMetaData.class.getMethods()) {
            if (method.getName().equals(request.get("method").asText()) && method.getParameterCount() == given.size()) {
                Object[] arguments = new Object[given.size()];
                for (int i = 0; i < arguments.length; i++) {
                    arguments[i] = JSON.treeToValue(given.get(i), method.getParameterTypes()[i]);
                }
                try {
                    Object result = method.invoke(connection.getMetaData(), arguments);
                    return result instanceof ResultSet rows ? rows(rows) : JSON.valueToTree(result);
                } catch (InvocationTargetException failure) {
                    throw failure.getCause();
                }
            }
        }
        throw new NoSuchMethodException(request.toString());
    }

    private static JsonNode query(JsonNode request) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(request.get("sql").asText())) {
            set(statement, request.get("parameters"));
            statement.setMaxRows(request.path("max_rows").asInt(0));
            statement.setFetchSize(1000);
            statement.setQueryTimeout(60);
            return rows(statement.executeQuery());
        }
    }

    private static JsonNode insert(JsonNode request) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(request.get("sql").asText())) {
            for (JsonNode row : request.get("rows")) {
                set(statement, row);
                statement.addBatch();
            }
            return JSON.valueToTree(statement.executeBatch().length);
        }
    }

    private static void set(PreparedStatement statement, JsonNode parameters) throws SQLException {
        for (int i = 0; i < parameters.size(); i++) {
            JsonNode parameter = parameters.get(i);
            statement.setObject(i + 1, parameter.isIntegralNumber() ? (Object) parameter.asLong() : parameter.asText());
        }
    }

    /** Begins a query in another thread. */
    private static JsonNode start(JsonNode request) throws SQLException {
        started = connection.createStatement();
        startedAnswer = CompletableFuture.supplyAsync(() -> {
            try {
                return rows(started.executeQuery(request.get("sql").asText()));
            } catch (SQLException failure) {
                return JSON.valueToTree(failure.toString());
            }
        });
        return JSON.nullNode();
    }

    /** Cancels it. Returns its rows or its error. */
    private static JsonNode cancel() throws SQLException, InterruptedException, ExecutionException {
        started.cancel();
        return startedAnswer.get();
    }

    private static ArrayNode rows(ResultSet rows) throws SQLException {
        ArrayNode found = JSON.createArrayNode();
        ResultSetMetaData columns = rows.getMetaData();
        while (rows.next()) {
            ObjectNode row = found.addObject();
            for (int i = 1; i <= columns.getColumnCount(); i++) {
                row.put(columns.getColumnLabel(i), rows.getString(i));
            }
        }
        rows.close();
        return found;
    }
}
