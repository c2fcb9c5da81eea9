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
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.Future;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The unmodified Java client, driven by tests: one JSON request per line on stdin, one JSON answer per line on stdout,
 * so that one JVM serves a whole test session. Bytes travel as base64. Every request makes its own client and closes it.
 */
public final class Helper {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Transactions TRANSACTIONS = new Transactions();
    private static Load load;

    public static void main(String[] arguments) throws IOException {
        PrintStream answers = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        System.setOut(System.err); // nothing but answers may reach stdout
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                answer.set("ok", answer(JSON.readTree(line)));
            } catch (Exception failure) {
                failure.printStackTrace();
                answer.put("error", failure.toString());
            }
            answers.println(JSON.writeValueAsString(answer));
        }
    }

    private static JsonNode answer(JsonNode request) throws Exception {
        if (request.get("verb").asText().startsWith("transactions_")) return TRANSACTIONS.answer(request);
        return switch (request.get("verb").asText()) {
            case "create_topic" -> createTopic(request);
            case "produce" -> produce(request);
            case "read" -> read(request);
            case "commit" -> commit(request);
            case "committed" -> committed(request);
            case "subscribe" -> GroupProtocols.subscribe(request, groupProperties(request));
            case "load_start" -> loadStart(request);
            case "load_await" -> loadAwait(request);
            case "load_stop" -> loadStop();
            default -> throw new IllegalArgumentException("unknown verb in " + request);
        };
    }

    private static JsonNode createTopic(JsonNode request) throws Exception {
        try (Admin admin = Admin.create(properties(request))) {
            NewTopic topic = new NewTopic(request.get("topic").asText(), request.get("partitions").asInt(), (short) 1);
            admin.createTopics(List.of(topic)).all().get();
        }
        return JSON.nullNode();
    }

    private static JsonNode produce(JsonNode request) throws Exception {
        Properties properties = properties(request);
        properties.put("compression.type", request.get("codec").asText());
        properties.put("linger.ms", "20"); // so that a batch holds several records
        properties.put("max.request.size", "8000000");
        // Both have a default (all, true) that the tests want to see working untouched.
        if (request.hasNonNull("acks")) properties.put("acks", request.get("acks").asText());
        if (request.hasNonNull("idempotent")) {
            properties.put("enable.idempotence", request.get("idempotent").asText());
        }
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = producer(properties)) {
            for (JsonNode record : request.get("records")) {
                ProducerRecord<byte[], byte[]> outgoing = new ProducerRecord<>(
                        request.get("topic").asText(),
                        request.get("partition").asInt(),
                        record.hasNonNull("timestamp_ms") ? record.get("timestamp_ms").asLong() : null,
                        bytes(record.get("key")),
                        bytes(record.get("value")));
                for (JsonNode header : record.get("headers")) {
                    outgoing.headers().add(header.get(0).asText(), bytes(header.get(1)));
                }
                sent.add(producer.send(outgoing));
            }
            producer.flush();
        }
        for (Future<RecordMetadata> acknowledgement : sent) acknowledgement.get();
        return JSON.nullNode();
    }

    private static JsonNode read(JsonNode request) {
        ArrayNode records = JSON.createArrayNode();
        int count = request.get("count").asInt();
        TopicPartition partition =
                new TopicPartition(request.get("topic").asText(), request.get("partition").asInt());
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(properties(request))) {
            consumer.assign(List.of(partition));
            long start;
            if (request.hasNonNull("timestamp_ms")) {
                OffsetAndTimestamp found = consumer
                        .offsetsForTimes(Map.of(partition, request.get("timestamp_ms").asLong()))
                        .get(partition);
                if (found == null) throw new IllegalStateException("no offset for that timestamp");
                start = found.offset();
            } else {
                start = request.get("offset").asLong();
            }
            consumer.seek(partition, start);
            long deadline = System.nanoTime() + Duration.ofSeconds(50).toNanos();
            while (records.size() < count) {
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException("read " + records.size() + " of " + count + " records in 50 s");
                }
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                    if (records.size() < count) records.add(json(record));
                }
            }
        }
        return records;
    }

    private static JsonNode commit(JsonNode request) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (JsonNode one : request.get("offsets")) {
            TopicPartition partition =
                    new TopicPartition(request.get("topic").asText(), one.get(0).asInt());
            offsets.put(partition, new OffsetAndMetadata(one.get(1).asLong(), one.get(2).asText()));
        }
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(groupProperties(request))) {
            consumer.assign(offsets.keySet());
            consumer.commitSync(offsets);
        }
        return JSON.nullNode();
    }

    private static JsonNode committed(JsonNode request) {
        ArrayNode answer = JSON.createArrayNode();
        String topic = request.get("topic").asText();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(groupProperties(request))) {
            Set<TopicPartition> partitions = consumer.partitionsFor(topic).stream()
                    .map(partition -> new TopicPartition(topic, partition.partition()))
                    .collect(Collectors.toSet());
            consumer.committed(partitions).forEach((partition, offset) -> {
                if (offset == null) return;
                answer.addArray().add(partition.partition()).add(offset.offset()).add(offset.metadata());
            });
        }
        return answer;
    }

    private static JsonNode loadStart(JsonNode request) {
        load = new Load(
                producer(properties(request)), request.get("topic").asText(), request.get("partitions").asInt());
        load.start();
        return JSON.nullNode();
    }

    private static JsonNode loadAwait(JsonNode request) throws Exception {
        load.await(request.get("count").asInt(), Duration.ofSeconds(30));
        return JSON.nullNode();
    }

    private static JsonNode loadStop() throws Exception {
        ArrayNode acknowledged = JSON.createArrayNode();
        for (Load.Acknowledged one : load.finish()) {
            acknowledged.add(JSON.createArrayNode().add(one.partition()).add(one.offset()).add(one.number()));
        }
        return acknowledged;
    }

    private static ObjectNode json(ConsumerRecord<byte[], byte[]> record) {
        ObjectNode node = JSON.createObjectNode();
        node.put("offset", record.offset());
        node.put("timestamp_ms", record.timestamp());
        node.put("key", base64(record.key()));
        node.put("value", base64(record.value()));
        ArrayNode headers = node.putArray("headers");
        for (Header header : record.headers()) headers.addArray().add(header.key()).add(base64(header.value()));
        return node;
    }

    private static Properties properties(JsonNode request) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", request.get("kafka").asText());
        return properties;
    }

    private static Properties groupProperties(JsonNode request) {
        Properties properties = properties(request);
        properties.put("group.id", request.get("group").asText());
        return properties;
    }

    private static KafkaProducer<byte[], byte[]> producer(Properties properties) {
        return new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private static KafkaConsumer<byte[], byte[]> consumer(Properties properties) {
        properties.put("enable.auto.commit", "false");
        properties.put("auto.offset.reset", "none");
        properties.put("fetch.max.wait.ms", "50"); // close() waits for the fetch in flight
        return new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static byte[] bytes(JsonNode node) {
        return node.isNull() ? null : Base64.getDecoder().decode(node.asText());
    }

    private static String base64(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }
}
