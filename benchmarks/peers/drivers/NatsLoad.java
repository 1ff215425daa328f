import io.nats.client.Connection;
import io.nats.client.JetStream;
import io.nats.client.MessageConsumer;
import io.nats.client.Nats;
import io.nats.client.Options;
import io.nats.client.OrderedConsumerContext;
import io.nats.client.api.DeliverPolicy;
import io.nats.client.api.OrderedConsumerConfiguration;
import io.nats.client.api.StorageType;
import io.nats.client.api.StreamConfiguration;
import java.time.Duration;
import java.util.function.Consumer;

/** NatsLoad URL: the Java client of NATS, with JetStream. A topic is a stream with one subject of the same name. */
public class NatsLoad extends LoadDriver {
    private static final Duration TIMEOUT = Duration.ofSeconds(30);
    private final Connection connection;
    private final JetStream stream;

    private NatsLoad(String url) throws Exception {
        Options options = new Options.Builder().server(url).maxReconnects(-1).connectionTimeout(TIMEOUT).build();
        connection = Nats.connect(options);
        stream = connection.jetStream();
    }

    public static void main(String[] arguments) throws Exception {
        new NatsLoad(arguments[0]).serve();
    }

    @Override
    void create(String topic, int queues) throws Exception {
        connection.jetStreamManagement().addStream(
            StreamConfiguration.builder().name(topic).subjects(topic).storageType(StorageType.File).build());
    }

    @Override
    int fillBatch() {
        return 1;
    }

    @Override
    void send(String topic, byte[] body, int batch, Answer answer) {
        if (batch > 1) {
            throw new UnsupportedOperationException("the client of NATS has no call that sends several messages");
        }
        stream.publishAsync(topic, body).whenComplete((acknowledgement, error) -> answer.heard(error));
    }

    @Override
    AutoCloseable consume(String topic, boolean fromFirst, Consumer<byte[]> listener) throws Exception {
        OrderedConsumerContext context = connection.getStreamContext(topic).createOrderedConsumer(
            new OrderedConsumerConfiguration().deliverPolicy(fromFirst ? DeliverPolicy.All : DeliverPolicy.New));
        MessageConsumer consumer = context.consume(message -> listener.accept(message.getData()));
        return () -> {
            consumer.stop();
            consumer.close();
        };
    }
}
