import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** KafkaLoad HOST:PORT: Kafka's own client. It makes batches by itself, of what waits to be sent. */
public class KafkaLoad extends LoadDriver {
    private static final Duration POLL = Duration.ofMillis(100);
    private final String address;
    private final KafkaProducer<byte[], byte[]> producer;
    private int groups = 0;

    private KafkaLoad(String address) {
        this.address = address;
        Properties properties = properties();
        properties.put("acks", "all");
        // Its default, 5 ms, would make a closed loop wait for nothing.
        properties.put("linger.ms", "0");
        properties.put("reconnect.backoff.ms", "5");
        properties.put("reconnect.backoff.max.ms", "5");
        producer = new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer());
    }

    public static void main(String[] arguments) throws Exception {
        new KafkaLoad(arguments[0]).serve();
    }

    private Properties properties() {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", address);
        return properties;
    }

    @Override
    void create(String topic, int queues) throws Exception {
        try (Admin admin = Admin.create(properties())) {
            admin.createTopics(List.of(new NewTopic(topic, queues, (short) 1))).all().get();
        }
        // Of several batches in flight to a partition that is not ready, a later one may be taken first; the producer
        // then repeats the others in vain. One message alone waits until the partition is ready.
        for (int partition = 0; partition < queues; partition++) {
            producer.send(new ProducerRecord<>(topic, partition, null, new byte[Long.BYTES])).get();
        }
    }

    @Override
    void send(String topic, byte[] body, int batch, Answer answer) {
        AtomicInteger left = new AtomicInteger(batch);
        AtomicReference<Exception> failure = new AtomicReference<>();
        for (int i = 0; i < batch; i++) {
            producer.send(new ProducerRecord<>(topic, body), (metadata, error) -> {
                if (error != null) {
                    failure.compareAndSet(null, error);
                }
                if (left.decrementAndGet() == 0) {
                    answer.heard(failure.get());
                }
            });
        }
    }

    @Override
    AutoCloseable consume(String topic, boolean fromFirst, Consumer<byte[]> listener) {
        Properties properties = properties();
        properties.put("group.id", "load-" + System.nanoTime() + "-" + groups++);
        properties.put("auto.offset.reset", fromFirst ? "earliest" : "latest");
        KafkaConsumer<byte[], byte[]> consumer =
            new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        consumer.subscribe(List.of(topic));
        Polling polling = new Polling(consumer, listener);
        polling.start();
        return polling;
    }

    /** The thread that owns a consumer. */
    private static final class Polling extends Thread implements AutoCloseable {
        private final KafkaConsumer<byte[], byte[]> consumer;
        private final Consumer<byte[]> listener;
        private volatile boolean closing = false;

        Polling(KafkaConsumer<byte[], byte[]> consumer, Consumer<byte[]> listener) {
            this.consumer = consumer;
            this.listener = listener;
        }

        @Override
        public void run() {
            while (!closing) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
                    listener.accept(record.value());
                }
            }
            consumer.close();
        }

        @Override
        public void close() throws InterruptedException {
            closing = true;
            join();
        }
    }
}
