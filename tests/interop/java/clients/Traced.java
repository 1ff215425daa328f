import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

/** One message, sent and consumed by clients that trace; the concurrent consumer fails the first time. */
final class Traced {
    private final Session session;

    Traced(Session session) {
        this.session = session;
    }

    void run() throws Exception {
        String topic = session.topic("Traced");
        DefaultMQProducer producer =
            session.started(new DefaultMQProducer(session.named("TracedProducer"), true, null));
        Message message = Session.message(topic, "TagA", "traced");
        String id = Session.sent(producer.send(message)).getMsgId();

        Received concurrent = new Received();
        DefaultMQPushConsumer failing = session.configured(consumer("TracedConcurrent"));
        failing.subscribe(topic, "*");
        failing.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            concurrent.add(batch);
            return batch.get(0).getReconsumeTimes() == 0
                ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        failing.start();

        Received orderly = new Received();
        DefaultMQPushConsumer ordered = session.configured(consumer("TracedOrderly"));
        ordered.subscribe(topic, "*");
        ordered.registerMessageListener((MessageListenerOrderly) (batch, context) -> {
            orderly.add(batch);
            return ConsumeOrderlyStatus.SUCCESS;
        });
        ordered.start();

        Session.await("both consumers", () -> concurrent.size() >= 2 && orderly.size() >= 1);
        // Their ends tell what they have gathered.
        failing.shutdown();
        ordered.shutdown();
        producer.shutdown();
        ClientsDriver.print("TRACED " + id);
    }

    private DefaultMQPushConsumer consumer(String what) {
        return new DefaultMQPushConsumer(session.named(what), true, null);
    }
}
