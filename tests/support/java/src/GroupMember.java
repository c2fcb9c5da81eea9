import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** One consumer of a group: processes what it gets, reports it, commits, and so on until it is told to leave. */
final class GroupMember extends Thread implements ConsumerRebalanceListener {
    private static final Map<String, String> ASSIGNORS = Map.of(
            "range", "org.apache.kafka.clients.consumer.RangeAssignor",
            "roundrobin", "org.apache.kafka.clients.consumer.RoundRobinAssignor",
            "cooperative-sticky", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");
    private static final Duration POLL = Duration.ofMillis(100);

    private final JsonNode command;
    private final String mode;
    private final Queue<JsonNode> commands = new ConcurrentLinkedQueue<>();
    private final Map<TopicPartition, Long> uncommitted = new HashMap<>();
    private KafkaConsumer<byte[], byte[]> consumer;

    GroupMember(JsonNode command) {
        super(command.get("member").asText());
        this.command = command;
        this.mode = command.get("commit").asText();
        setDaemon(true);
    }

    void tell(JsonNode asked) {
        commands.add(asked);
    }

    @Override
    public void run() {
        try {
            consumer = new KafkaConsumer<>(properties(), new ByteArrayDeserializer(), new ByteArrayDeserializer());
            try {
                consume();
                GroupMembers.report(event("leaving"));
            } finally {
                consumer.close();
            }
            GroupMembers.report(event("left"));
        } catch (Exception failure) {
            failure.printStackTrace();
            GroupMembers.report(event("failed")
                    .put("name", failure.getClass().getSimpleName())
                    .put("error", failure.toString()));
        }
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        ObjectNode assigned = event("assigned").put("generation", consumer.groupMetadata().generationId());
        GroupMembers.report(assigned.set("partitions", GroupMembers.pairs(partitions)));
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        gone("revoked", partitions);
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
        gone("lost", partitions);
    }

    private void gone(String event, Collection<TopicPartition> partitions) {
        partitions.forEach(uncommitted::remove);
        GroupMembers.report(event(event).set("partitions", GroupMembers.pairs(partitions)));
    }

    private void consume() throws InterruptedException {
        if (command.hasNonNull("pattern")) {
            consumer.subscribe(Pattern.compile(command.get("pattern").asText()), this);
        } else {
            List<String> topics = new ArrayList<>();
            for (JsonNode topic : command.get("topics")) topics.add(topic.asText());
            consumer.subscribe(topics, this);
        }
        while (true) {
            JsonNode asked = commands.poll();
            if (asked != null) {
                if (asked.get("verb").asText().equals("leave")) return;
                TopicPartition place =
                        new TopicPartition(asked.get("topic").asText(), asked.get("partition").asInt());
                consumer.seek(place, asked.get("to").asLong());
                GroupMembers.report(event("sought"));
            }
            ConsumerRecords<byte[], byte[]> records = consumer.poll(POLL);
            if (mode.equals("before") && !records.isEmpty()) {
                remember(records);
                commit();
                new CountDownLatch(1).await(); // until the process is killed
            }
            process(records);
            commit();
        }
    }

    private void process(ConsumerRecords<byte[], byte[]> records) {
        if (records.isEmpty()) return;
        ObjectNode processed = event("processed");
        ArrayNode offsets = processed.putArray("offsets");
        for (TopicPartition place : records.partitions()) {
            ArrayNode some = offsets.addArray().add(place.topic()).add(place.partition()).addArray();
            for (ConsumerRecord<byte[], byte[]> record : records.records(place)) some.add(record.offset());
        }
        GroupMembers.report(processed);
        remember(records);
    }

    private void remember(ConsumerRecords<byte[], byte[]> records) {
        for (ConsumerRecord<byte[], byte[]> record : records) {
            uncommitted.put(new TopicPartition(record.topic(), record.partition()), record.offset() + 1);
        }
    }

    private void commit() {
        if (uncommitted.isEmpty() || mode.equals("auto")) return;
        Map<TopicPartition, OffsetAndMetadata> ends = new HashMap<>();
        uncommitted.forEach((place, end) -> ends.put(place, new OffsetAndMetadata(end)));
        if (mode.equals("async")) {
            consumer.commitAsync(ends, (committed, failure) -> reportCommit(committed, failure));
            uncommitted.clear();
            return;
        }
        try {
            consumer.commitSync(ends);
        } catch (CommitFailedException | RebalanceInProgressException | TimeoutException failure) {
            reportCommit(ends, failure);
            return;
        }
        uncommitted.clear();
        reportCommit(ends, null);
    }

    private void reportCommit(Map<TopicPartition, OffsetAndMetadata> ends, Exception failure) {
        if (failure != null) {
            GroupMembers.report(event("commit_failed").put("error", failure.toString()));
            return;
        }
        ObjectNode committed = event("committed");
        ArrayNode offsets = committed.putArray("offsets");
        ends.forEach((place, end) ->
                offsets.addArray().add(place.topic()).add(place.partition()).add(end.offset()));
        GroupMembers.report(committed);
    }

    private ObjectNode event(String kind) {
        return GroupMembers.event(getName(), kind);
    }

    private Properties properties() {
        List<String> assignors = new ArrayList<>();
        for (JsonNode name : command.get("assignors")) assignors.add(ASSIGNORS.get(name.asText()));
        Properties properties = new Properties();
        properties.put("bootstrap.servers", command.get("kafka").asText());
        properties.put("group.id", command.get("group").asText());
        if (command.hasNonNull("instance_id")) {
            properties.put("group.instance.id", command.get("instance_id").asText());
        }
        properties.put("session.timeout.ms", command.get("session_timeout_ms").asText());
        properties.put("heartbeat.interval.ms", command.get("heartbeat_ms").asText());
        properties.put("metadata.max.age.ms", command.get("metadata_max_age_ms").asText());
        properties.put("reconnect.backoff.max.ms", "250");
        // Otherwise it forgets all metadata when its only broker is away (KIP-1102), and a leader joins again for that.
        properties.put("metadata.recovery.strategy", "none");
        properties.put("auto.offset.reset", "earliest");
        properties.put("enable.auto.commit", String.valueOf(mode.equals("auto")));
        properties.put("auto.commit.interval.ms", "200");
        properties.put("fetch.max.wait.ms", "100");
        properties.put("partition.assignment.strategy", String.join(",", assignors));
        return properties;
    }
}
