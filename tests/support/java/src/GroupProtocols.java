import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Members of groups of the newer protocols: KIP-848 and KIP-932. */
final class GroupProtocols {
    private static final Duration POLL = Duration.ofMillis(200);
    private static final int POLLS = 150;

    private GroupProtocols() {}

    /** Subscribes and polls for 30 s; the client's error ends it. */
    static JsonNode subscribe(JsonNode request, Properties properties) {
        List<String> topics = List.of(request.get("topic").asText());
        if (request.get("protocol").asText().equals("share")) {
            try (KafkaShareConsumer<byte[], byte[]> consumer = new KafkaShareConsumer<>(
                    properties, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
                consumer.subscribe(topics);
                for (int poll = 0; poll < POLLS; poll++) consumer.poll(POLL);
            }
        } else {
            properties.put("group.protocol", request.get("protocol").asText());
            try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(
                    properties, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
                consumer.subscribe(topics);
                for (int poll = 0; poll < POLLS; poll++) consumer.poll(POLL);
            }
        }
        return JsonNodeFactory.instance.nullNode();
    }
}
