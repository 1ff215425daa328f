import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentSkipListMap;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Sends batches to queue 0 of a topic, then reads the topic with a pull and a push consumer. */
class Batches {
    private final Clients clients;
    private final String topic;

    Batches(String nameServer, String topic) throws Exception {
        this.clients = new Clients(nameServer);
        this.topic = topic;
    }

    /** Bodies are numbers from {@code first} on; the pull consumer starts at offset {@code from}. */
    JSONObject run(int first, int batches, int size, long from) throws Exception {
        JSONObject result = new JSONObject(true);
        result.put("sent", send(first, batches, size));
        result.put("pulled", pull(from));
        result.put("pushed", push());
        return result;
    }

    private JSONArray send(int first, int batches, int size) throws Exception {
        DefaultMQProducer producer = clients.started(new DefaultMQProducer("BatchesProducer"));
        JSONArray receipts = new JSONArray();
        for (int batch = 0; batch < batches; batch++) {
            List<Message> messages = new ArrayList<>();
            for (int member = 0; member < size; member++) {
                String number = String.valueOf(first + batch * size + member);
                messages.add(new Message(topic, "T", "key-" + number, number.getBytes(StandardCharsets.UTF_8)));
            }
            SendResult sent = producer.send(messages, clients.queue(topic, 0));
            JSONObject receipt = new JSONObject(true);
            receipt.put("status", sent.getSendStatus().name());
            receipt.put("queueOffset", sent.getQueueOffset());
            receipt.put("offsetMsgId", sent.getOffsetMsgId());
            receipts.add(receipt);
        }
        return receipts;
    }

    private JSONArray pull(long from) throws Exception {
        DefaultMQPullConsumer consumer = clients.puller("BatchesPullers", true);
        MessageQueue queue = clients.queue(topic, 0);
        JSONArray found = new JSONArray();
        long end = clients.admin.maxOffset(queue);
        for (long at = from; at < end; ) {
            PullResult pulled = consumer.pull(queue, "*", at, 32);
            if (pulled.getPullStatus() == PullStatus.FOUND) {
                pulled.getMsgFoundList().forEach(message -> found.add(record(message)));
            }
            if (pulled.getNextBeginOffset() <= at) {
                throw new IllegalStateException("no way past " + at + ": " + pulled.getPullStatus());
            }
            at = pulled.getNextBeginOffset();
        }
        return found;
    }

    private JSONArray push() throws Exception {
        Map<Long, MessageExt> received = new ConcurrentSkipListMap<>();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("BatchesPushed" + System.nanoTime());
        consumer.setNamesrvAddr(clients.nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> received.put(message.getQueueOffset(), message));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        long count = clients.messageCount(topic);
        Clients.await(count + " messages", () -> received.size() >= count);
        JSONArray found = new JSONArray();
        received.values().forEach(message -> found.add(record(message)));
        return found;
    }

    private static JSONObject record(MessageExt message) {
        JSONObject record = new JSONObject(true);
        record.put("queueOffset", message.getQueueOffset());
        record.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
        record.put("keys", message.getKeys());
        return record;
    }
}
