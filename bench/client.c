/* A librdkafka client for the benchmark: produces, consumes, or measures produce latency, and prints
 * one line of JSON. In C, so that the client costs as little as it can: the broker shares its cores.
 *
 *   client produce  BROKER TOPIC COUNT SIZE [key=value ...]
 *   client consume  BROKER TOPIC COUNT SIZE [key=value ...]
 *   client latency  BROKER TOPIC COUNT SIZE [key=value ...]     one record at a time
 *   client version                                              of librdkafka
 *
 * Further arguments are librdkafka properties, and seconds=N: stop after N seconds, even before COUNT.
 * Values are SIZE bytes of pseudo-random letters, different for each record, so that compression has as
 * little to do as with real payloads of ids and numbers.
 */
#include <librdkafka/rdkafka.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int64_t delivered, failed, last_latency_us, sent_at_us;

static int64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

static void die(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static void on_delivery(rd_kafka_t *client, const rd_kafka_message_t *message, void *opaque) {
    (void)client;
    (void)opaque;
    if (message->err)
        failed++;
    else
        delivered++;
    last_latency_us = now_us() - sent_at_us;
}

static void fill(char *value, size_t size, uint64_t *state) {
    for (size_t i = 0; i < size; i += 8) {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        uint64_t letters = (*state & 0x0f0f0f0f0f0f0f0fULL) + 0x6161616161616161ULL;
        memcpy(value + i, &letters, size - i < 8 ? size - i : 8);
    }
}

static int ascending(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "version")) {
        puts(rd_kafka_version_str());
        return 0;
    }
    if (argc < 6)
        die("usage", "client produce|consume|latency BROKER TOPIC COUNT SIZE [key=value ...]");
    const char *mode = argv[1], *topic_name = argv[3];
    int64_t count = atoll(argv[4]);
    size_t size = (size_t)atoll(argv[5]);
    char why[512];
    int consuming = !strcmp(mode, "consume");
    int64_t limit_us = INT64_MAX;

    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_conf_set(conf, "bootstrap.servers", argv[2], why, sizeof why);
    if (!consuming) {
        rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
        rd_kafka_conf_set(conf, "queue.buffering.max.messages", "1000000", why, sizeof why);
    }
    for (int i = 6; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        if (!value)
            die("not key=value", argv[i]);
        *value++ = 0;
        if (!strcmp(argv[i], "seconds"))
            limit_us = (int64_t)(atof(value) * 1e6);
        else if (rd_kafka_conf_set(conf, argv[i], value, why, sizeof why) != RD_KAFKA_CONF_OK)
            die("property", why);
    }
    rd_kafka_t *client = rd_kafka_new(consuming ? RD_KAFKA_CONSUMER : RD_KAFKA_PRODUCER, conf, why,
                                      sizeof why);
    if (!client)
        die("client", why);

    int64_t started = now_us(), bytes = 0;
    if (consuming) {
        rd_kafka_topic_t *topic = rd_kafka_topic_new(client, topic_name, NULL);
        rd_kafka_queue_t *queue = rd_kafka_queue_new(client);
        if (rd_kafka_consume_start_queue(topic, 0, RD_KAFKA_OFFSET_BEGINNING, queue))
            die("consume", rd_kafka_err2str(rd_kafka_last_error()));
        static rd_kafka_message_t *messages[10000];
        int64_t expected = 0;
        while (delivered < count && now_us() - started < limit_us) {
            ssize_t got = rd_kafka_consume_batch_queue(queue, 10000, messages, 10000);
            if (got <= 0)
                die("consume", "nothing came for 10 s");
            for (ssize_t i = 0; i < got; i++) {
                if (messages[i]->err)
                    die("consume", rd_kafka_message_errstr(messages[i]));
                if (messages[i]->offset != expected++ || messages[i]->len != size)
                    die("consume", "a record is missing or not as sent");
                bytes += (int64_t)messages[i]->len;
                rd_kafka_message_destroy(messages[i]);
            }
            delivered += got;
        }
    } else {
        rd_kafka_topic_t *topic = rd_kafka_topic_new(client, topic_name, NULL);
        char *value = malloc(size + 8);
        int64_t *latencies = malloc(sizeof(int64_t) * (size_t)count);
        uint64_t state = 88172645463325252ULL;
        int one_at_a_time = !strcmp(mode, "latency");
        int64_t i = 0;
        for (; i < count && now_us() - started < limit_us; i++) {
            fill(value, size, &state);
            sent_at_us = now_us();
            while (rd_kafka_produce(topic, 0, RD_KAFKA_MSG_F_COPY, value, size, NULL, 0, NULL)) {
                if (rd_kafka_last_error() != RD_KAFKA_RESP_ERR__QUEUE_FULL)
                    die("produce", rd_kafka_err2str(rd_kafka_last_error()));
                rd_kafka_poll(client, 10);
            }
            bytes += (int64_t)size;
            if (one_at_a_time) {
                while (delivered + failed <= i)
                    rd_kafka_poll(client, 1000);
                latencies[i] = last_latency_us;
            } else {
                rd_kafka_poll(client, 0);
            }
        }
        rd_kafka_flush(client, 600000);
        count = i;
        if (failed || !count || delivered != count)
            die("produce", "not every record was acknowledged");
        if (one_at_a_time) {
            qsort(latencies, (size_t)count, sizeof *latencies, ascending);
            printf("{\"records\": %lld, \"p50_ms\": %.3f, \"p99_ms\": %.3f, \"max_ms\": %.3f}\n",
                   (long long)count, (double)latencies[count / 2] / 1e3,
                   (double)latencies[count * 99 / 100] / 1e3, (double)latencies[count - 1] / 1e3);
            return 0;
        }
    }
    double seconds = (double)(now_us() - started) / 1e6;
    printf("{\"records\": %lld, \"seconds\": %.3f, \"records_per_s\": %.0f, \"mb_per_s\": %.1f}\n",
           (long long)delivered, seconds, (double)delivered / seconds, (double)bytes / seconds / 1e6);
    return 0;
}
