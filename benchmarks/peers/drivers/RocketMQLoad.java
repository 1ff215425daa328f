import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.function.Consumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** RocketMQLoad NAMESRV: the client of Apache RocketMQ, on Apache's broker or on ours. */
public class RocketMQLoad extends LoadDriver {
    private static final int TIMEOUT_MS = 30_000;
    private static final int BATCH = 32;
    private final String nameServer;
    private final DefaultMQProducer producer = new DefaultMQProducer("load");
    private int groups = 0;

    private RocketMQLoad(String nameServer) throws Exception {
        this.nameServer = nameServer;
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(TIMEOUT_MS);
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.start();
    }

    public static void main(String[] arguments) throws Exception {
        new RocketMQLoad(arguments[0]).serve();
    }

    @Override
    void create(String topic, int queues) throws Exception {
        producer.createTopic("TBW102", topic, queues, Collections.emptyMap());
    }

    @Override
    void send(String topic, byte[] body, int batch, Answer answer) throws Exception {
        SendCallback callback = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                SendStatus status = result.getSendStatus();
                answer.heard(status == SendStatus.SEND_OK ? null : new IllegalStateException(status.name()));
            }

            @Override
            public void onException(Throwable error) {
                answer.heard(error);
            }
        };
        if (batch == 1) {
            producer.send(new Message(topic, body), callback);
            return;
        }
        List<Message> messages = new ArrayList<>(batch);
        for (int i = 0; i < batch; i++) {
            messages.add(new Message(topic, body));
        }
        producer.send(messages, callback);
    }

    @Override
    AutoCloseable consume(String topic, boolean fromFirst, Consumer<byte[]> listener) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("load-" + System.nanoTime() + "-" + groups++);
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(
            fromFirst ? ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET : ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(BATCH);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                listener.accept(message.getBody());
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer::shutdown;
    }
}
