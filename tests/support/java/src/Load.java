import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeoutException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/** Numbered records sent by a default (idempotent) producer, without a pause, until told to finish. */
final class Load extends Thread {
    /** The broker said that record {@code number} is at this place. */
    record Acknowledged(int partition, long offset, int number) {}

    private static final int IN_FLIGHT = 2000;

    private final KafkaProducer<byte[], byte[]> producer;
    private final String topic;
    private final int partitions;
    private final Semaphore room = new Semaphore(IN_FLIGHT);
    private final List<Acknowledged> acknowledged = new ArrayList<>();
    private volatile boolean finishing;
    private volatile Exception failure;

    Load(KafkaProducer<byte[], byte[]> producer, String topic, int partitions) {
        this.producer = producer;
        this.topic = topic;
        this.partitions = partitions;
        setDaemon(true);
    }

    @Override
    public void run() {
        for (int number = 0; !finishing && failure == null; number++) {
            room.acquireUninterruptibly();
            int sent = number;
            byte[] value = Integer.toString(number).getBytes(StandardCharsets.US_ASCII);
            producer.send(new ProducerRecord<>(topic, number % partitions, null, value), (metadata, exception) -> {
                room.release();
                synchronized (this) {
                    if (exception != null) {
                        failure = exception;
                    } else {
                        acknowledged.add(new Acknowledged(metadata.partition(), metadata.offset(), sent));
                    }
                    notifyAll();
                }
            });
        }
    }

    /** Returns when {@code count} records are acknowledged; fails when that takes longer than {@code limit}. */
    synchronized void await(int count, Duration limit) throws Exception {
        long deadline = System.nanoTime() + limit.toNanos();
        while (acknowledged.size() < count) {
            if (failure != null) throw failure;
            long leftMs = Duration.ofNanos(deadline - System.nanoTime()).toMillis();
            if (leftMs <= 0) throw new TimeoutException(acknowledged.size() + " of " + count + " acknowledged");
            wait(leftMs);
        }
    }

    List<Acknowledged> finish() throws Exception {
        finishing = true;
        join();
        producer.close();
        if (failure != null) throw failure;
        return acknowledged;
    }
}
