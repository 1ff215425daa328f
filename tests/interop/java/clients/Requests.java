import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Half of a conversation: the other half is another client. */
final class Requests {
    static final int REQUESTS = 10;
    static final long REPLY_TIMEOUT_MS = 50_000;

    private final Session session;

    Requests(Session session) {
        this.session = session;
    }

    /** Replies to whatever is asked, until it is killed. */
    void answer() throws Exception {
        String topic = session.topic("ToJava");
        DefaultMQProducer answering = session.producer("ToJavaAnswer");
        DefaultMQPushConsumer consumer = session.push("ToJava");
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            for (MessageExt request : batch) {
                try {
                    byte[] body = ("reply to " + Received.body(request)).getBytes(StandardCharsets.UTF_8);
                    Message reply = MessageUtil.createReplyMessage(request, body);
                    reply.setTags("TagA");
                    Session.sent(answering.send(reply, Session.SEND_TIMEOUT_MS));
                } catch (Exception error) {
                    error.printStackTrace();
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        ClientsDriver.print("ANSWERING " + topic);
        TimeUnit.DAYS.sleep(1);
    }

    /** Asks whoever answers: the topic is there already. */
    void ask() throws Exception {
        String topic = session.named("FromJava");
        DefaultMQProducer asking = session.producer("FromJavaAsk");
        Map<String, Object> outcomes = new ConcurrentHashMap<>();
        for (int i = 0; i < REQUESTS; i++) {
            String body = "request-" + i;
            asking.request(Session.message(topic, "A", body), new RequestCallback() {
                @Override
                public void onSuccess(Message reply) {
                    outcomes.put(body, new String(reply.getBody(), StandardCharsets.UTF_8));
                }

                @Override
                public void onException(Throwable error) {
                    outcomes.put(body, error);
                }
            }, REPLY_TIMEOUT_MS);
        }
        Session.await("replies", () -> outcomes.size() == REQUESTS);
        outcomes.forEach((body, reply) -> Session.equal(reply, "reply to " + body, "reply"));
        asking.shutdown();
    }
}
