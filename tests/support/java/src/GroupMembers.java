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
import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.common.TopicPartition;

/**
 * A process whose members consume in groups: the commands and events of tests/support/group_member.py, which says what
 * they mean. System.nanoTime is CLOCK_MONOTONIC.
 */
public final class GroupMembers {
    static final ObjectMapper JSON = new ObjectMapper();
    private static PrintStream events;

    public static void main(String[] arguments) throws IOException {
        events = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        System.setOut(System.err); // nothing but events may reach stdout
        Map<String, GroupMember> members = new HashMap<>();
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            JsonNode command = JSON.readTree(line);
            String name = command.get("member").asText();
            if (command.get("verb").asText().equals("join")) {
                GroupMember member = new GroupMember(command);
                members.put(name, member);
                member.start();
            } else {
                members.get(name).tell(command);
            }
        }
        System.exit(0);
    }

    static ObjectNode event(String member, String kind) {
        return JSON.createObjectNode().put("event", kind).put("member", member).put("at", System.nanoTime());
    }

    static synchronized void report(ObjectNode event) {
        events.println(event);
    }

    static ArrayNode pairs(Collection<TopicPartition> partitions) {
        ArrayNode pairs = JSON.createArrayNode();
        for (TopicPartition one : partitions) pairs.addArray().add(one.topic()).add(one.partition());
        return pairs;
    }
}
