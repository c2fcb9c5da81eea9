import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.common.utils.Exit;

/**
 * Kafka's own command line tools, one after the other in one JVM, as starting one takes longer than what it does.
 * A request is a JSON object per line: the tool's class and its arguments. The answer has what the tool printed on
 * stdout and on stderr, and its exit code.
 */
public final class Tools {
    private static final ObjectMapper JSON = new ObjectMapper();

    /** Unwinds a tool that exits. */
    private static final class Exited extends Error {
        private final int code;

        Exited(int code) {
            super(null, null, false, false);
            this.code = code;
        }
    }

    /** Writes to the sink of the tool that runs: logging keeps the stream that it found first. */
    private static final class Printed extends OutputStream {
        private ByteArrayOutputStream sink = new ByteArrayOutputStream();

        @Override
        public synchronized void write(int one) {
            sink.write(one);
        }

        @Override
        public synchronized void write(byte[] bytes, int from, int count) {
            sink.write(bytes, from, count);
        }

        synchronized String taken() {
            String text = sink.toString(StandardCharsets.UTF_8);
            sink = new ByteArrayOutputStream();
            return text;
        }
    }

    private Tools() {}

    public static void main(String[] none) throws IOException {
        PrintStream answers = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        System.setIn(new ByteArrayInputStream(new byte[0]));
        Printed out = new Printed();
        Printed err = new Printed();
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        Exit.setShutdownHookAdder((name, hook) -> {}); // these close what the tool closes itself when it ends
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            int code = run(JSON.readTree(line));
            System.out.flush();
            System.err.flush();
            ObjectNode ended = JSON.createObjectNode();
            ended.put("code", code).put("stdout", out.taken()).put("stderr", err.taken());
            answers.println(JSON.writeValueAsString(JSON.createObjectNode().set("ok", ended)));
        }
        Runtime.getRuntime().halt(0);
    }

    private static int run(JsonNode request) {
        List<String> arguments = new ArrayList<>();
        for (JsonNode argument : request.get("arguments")) arguments.add(argument.asText());
        int[] first = {-1}; // a tool may catch what unwinds it and exit again
        Exit.Procedure exit = (code, message) -> {
            if (first[0] < 0) first[0] = code;
            throw new Exited(first[0]);
        };
        Exit.setExitProcedure(exit);
        Exit.setHaltProcedure(exit);
        try {
            Class.forName(request.get("tool").asText())
                    .getMethod("main", String[].class)
                    .invoke(null, (Object) arguments.toArray(new String[0]));
        } catch (InvocationTargetException thrown) {
            if (thrown.getCause() instanceof Exited exited) return exited.code;
            thrown.getCause().printStackTrace();
            return 1;
        } catch (ReflectiveOperationException wrong) {
            wrong.printStackTrace();
            return 1;
        }
        return Math.max(first[0], 0);
    }
}
