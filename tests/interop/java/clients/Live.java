import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;

/** A producer and a consumer that stay connected, for tools to look at. */
final class Live {
    private final Session session;

    Live(Session session) {
        this.session = session;
    }

    void run() throws Exception {
        String topic = session.topic("Live");
        Received received = new Received();
        DefaultMQPushConsumer consumer = session.push("LiveConsumer");
        consumer.subscribe(topic, "TagA || TagB");
        consumer.registerMessageListener(received);
        consumer.start();
        DefaultMQProducer producer = session.producer("LiveProducer");
        for (int i = 0; i < 4; i++) {
            Session.sent(producer.send(Session.message(topic, "TagA", "live-" + i)));
        }
        Session.await("its own messages", () -> received.size() == 4);
        Session.await("its offsets", () -> session.lag(session.named("LiveConsumer"), topic) == 0);
        ClientsDriver.print("LIVE " + consumer.buildMQClientId() + " " + producer.buildMQClientId());
        TimeUnit.DAYS.sleep(1);
    }
}
