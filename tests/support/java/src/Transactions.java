import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Transactional producers that stay open between requests, by the name that a test gives them. */
final class Transactions {
    private static final Duration CLOSE = Duration.ofSeconds(5);

    private final Map<String, KafkaProducer<byte[], byte[]>> producers = new HashMap<>();
    private final Map<String, List<Future<RecordMetadata>>> sent = new HashMap<>();

    JsonNode answer(JsonNode request) throws Exception {
        String name = request.get("producer").asText();
        KafkaProducer<byte[], byte[]> producer = producers.get(name);
        switch (request.get("verb").asText()) {
            case "transactions_open" -> open(name, request);
            case "transactions_begin" -> producer.beginTransaction();
            case "transactions_send" -> sent.get(name).add(producer.send(new ProducerRecord<>(
                    request.get("topic").asText(),
                    request.get("partition").asInt(),
                    null,
                    request.get("value").asText().getBytes())));
            case "transactions_flush" -> flush(name);
            case "transactions_offsets" -> producer.sendOffsetsToTransaction(offsets(request), group(request));
            case "transactions_commit" -> producer.commitTransaction();
            case "transactions_abort" -> {
                sent.put(name, new ArrayList<>()); // those that wait to be sent fail, as they should
                producer.abortTransaction();
            }
            case "transactions_close" -> producers.remove(name).close(CLOSE);
            default -> throw new IllegalArgumentException("unknown verb in " + request);
        }
        return JsonNodeFactory.instance.nullNode();
    }

    private void open(String name, JsonNode request) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", request.get("bootstrap").asText());
        properties.put("transactional.id", request.get("transactional_id").asText());
        properties.put("transaction.timeout.ms", request.get("timeout_ms").asInt());
        properties.put("max.block.ms", 30000);
        KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer());
        producers.put(name, producer);
        sent.put(name, new ArrayList<>());
        producer.initTransactions();
    }

    private void flush(String name) throws Exception {
        producers.get(name).flush();
        List<Future<RecordMetadata>> waiting = sent.put(name, new ArrayList<>());
        for (Future<RecordMetadata> one : waiting) one.get();
    }

    /** As a member if the request names one, else without a member id. */
    private static ConsumerGroupMetadata group(JsonNode request) {
        String name = request.get("group").asText();
        if (!request.hasNonNull("member_id")) return new ConsumerGroupMetadata(name);
        String instance = request.hasNonNull("instance_id") ? request.get("instance_id").asText() : null;
        return new ConsumerGroupMetadata(
                name,
                request.get("generation").asInt(),
                request.get("member_id").asText(),
                Optional.ofNullable(instance));
    }

    private static Map<TopicPartition, OffsetAndMetadata> offsets(JsonNode request) {
        TopicPartition partition =
                new TopicPartition(request.get("topic").asText(), request.get("partition").asInt());
        return Map.of(partition, new OffsetAndMetadata(request.get("offset").asLong()));
    }
}
