import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Sends every kind of message that a stock client can send, and waits until the broker has nothing left to do. */
class Fill {
    static final int QUEUES = 4;
    static final int LEVEL_ONE_SECOND = 1;
    static final int LEVEL_TWO_HOURS = 18;
    static final String OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC";
    static final String[] TAGS = {null, "TagA", "TagB", "order-created", "订单", "😀", "polygenelubricants"};

    private final Clients clients;
    private final long seed;
    private final Random random;
    private final Receipts receipts = new Receipts();
    private final DefaultMQProducer producer;

    Fill(String nameServer, long seed) throws Exception {
        this.clients = new Clients(nameServer);
        this.seed = seed;
        this.random = new Random(seed);
        this.producer = clients.started(new DefaultMQProducer("FillProducer"));
    }

    JSONObject run(int count) throws Exception {
        for (String topic : new String[] {"Plain", "Order", "Async", "Oneway", "Batch", "Packed", "Delay", "Half"}) {
            clients.admin.createAndUpdateTopicConfig(
                clients.brokerAddress, new TopicConfig("Fill" + topic, QUEUES, QUEUES));
        }
        plain(count);
        ordered();
        asynchronous();
        batches();
        compressed();
        sentBack();
        oneway();
        delayed();
        transactions();
        return receipts.toJson();
    }

    private Message message(String topic, int number, int bodySize) {
        byte[] body = new byte[bodySize];
        random.nextBytes(body);
        Message message = new Message(topic, body);
        String tag = TAGS[random.nextInt(TAGS.length)];
        if (tag != null) {
            message.setTags(tag);
        }
        if (number % 4 != 3) {
            message.setKeys(topic + "-" + seed + "-" + number + " mod-" + seed + "-" + number % 11 + " 键" + number);
        }
        message.setFlag(random.nextInt());
        message.putUserProperty("number", String.valueOf(number));
        if (number % 5 == 0) {
            message.putUserProperty("имя", "значение ∑ " + "x".repeat(random.nextInt(2000)));
        }
        return message;
    }

    private void plain(int count) throws Exception {
        for (int i = 0; i < count; i++) {
            Message message = message("FillPlain", i, 1 + random.nextInt(i % 10 == 0 ? 4000 : 300));
            message.setWaitStoreMsgOK(i % 3 != 0);
            receipts.add("plain", message, producer.send(message, clients.queue("FillPlain", random.nextInt(QUEUES))));
        }
        Message last = message("FillPlain", count, 1);
        receipts.add("plain", last, producer.send(last));
    }

    private void ordered() throws Exception {
        for (int i = 0; i < 12; i++) {
            Message message = message("FillOrder", i, 40);
            receipts.add("plain", message, producer.send(message, new SelectMessageQueueByHash(), "order-" + i % 3));
        }
    }

    private void asynchronous() throws Exception {
        List<Throwable> errors = new ArrayList<>();
        CountDownLatch answers = new CountDownLatch(10);
        for (int i = 0; i < 10; i++) {
            Message message = message("FillAsync", i, 100);
            producer.send(message, new SendCallback() {
                public void onSuccess(SendResult result) {
                    try {
                        receipts.add("plain", message, result);
                    } catch (Exception error) {
                        onException(error);
                        return;
                    }
                    answers.countDown();
                }

                public void onException(Throwable error) {
                    synchronized (errors) {
                        errors.add(error);
                    }
                    answers.countDown();
                }
            });
        }
        if (!answers.await(Clients.WAIT_MS, TimeUnit.MILLISECONDS) || !errors.isEmpty()) {
            throw new IllegalStateException("asynchronous sends failed: " + errors);
        }
    }

    private void batches() throws Exception {
        for (int size : new int[] {1, 3, 12}) {
            List<Message> batch = new ArrayList<>();
            for (int i = 0; i < size; i++) {
                Message message = message("FillBatch", size * 100 + i, 1 + random.nextInt(200));
                batch.add(message);
            }
            receipts.addBatch(batch, producer.send(batch));
        }
    }

    private void compressed() throws Exception {
        for (CompressionType type : CompressionType.values()) {
            DefaultMQProducer packer = new DefaultMQProducer("Fill" + type);
            packer.setCompressType(type);
            clients.started(packer);
            for (int size : new int[] {4095, 4096, 9000, 200_000}) {
                Message message = message("FillPacked", type.ordinal() * 10 + size, 1);
                message.setBody(words(size));
                receipts.add("plain", message, packer.send(message));
            }
        }
    }

    private byte[] words(int size) {
        StringBuilder text = new StringBuilder();
        while (text.length() < size) {
            text.append("word").append(random.nextInt(50)).append(' ');
        }
        return text.substring(0, size).getBytes(StandardCharsets.UTF_8);
    }

    /** Returned by a consumer, a message waits in the schedule topic for its retry topic, reconsume count 1. */
    private void sentBack() throws Exception {
        DefaultMQPullConsumer consumer = clients.puller("FillGroup", true);
        PullResult found = consumer.pull(clients.queue("FillPlain", 0), "*", 0, 2);
        for (MessageExt message : found.getMsgFoundList()) {
            consumer.sendMessageBack(message, LEVEL_TWO_HOURS);
        }
    }

    private void oneway() throws Exception {
        long before = clients.messageCount("FillOneway");
        for (int i = 0; i < 6; i++) {
            producer.sendOneway(message("FillOneway", i, 50));
        }
        Clients.await("one-way messages", () -> clients.messageCount("FillOneway") == before + 6);
    }

    private void delayed() throws Exception {
        long before = clients.messageCount("FillDelay");
        int[] levels = {LEVEL_ONE_SECOND, LEVEL_TWO_HOURS, LEVEL_ONE_SECOND, LEVEL_TWO_HOURS - 1, LEVEL_TWO_HOURS};
        for (int level : levels) {
            Message message = message("FillDelay", level, 60);
            message.setDelayTimeLevel(level);
            receipts.add("delayed", message, producer.send(message));
        }
        Message timer = message("FillDelay", 7200, 60);
        timer.setDelayTimeSec(7200);
        receipts.add("delayed", timer, producer.send(timer));
        Clients.await("delayed messages", () -> clients.messageCount("FillDelay") == before + 2);
    }

    private void transactions() throws Exception {
        TransactionMQProducer transactional = new TransactionMQProducer("FillTransactions");
        transactional.setTransactionListener(new TransactionListener() {
            public LocalTransactionState executeLocalTransaction(Message message, Object state) {
                return (LocalTransactionState) state;
            }

            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.UNKNOW;
            }
        });
        clients.started(transactional);
        long before = endedTransactions();
        LocalTransactionState[] states = LocalTransactionState.values();
        for (int i = 0; i < 2 * states.length; i++) {
            Message message = message("FillHalf", i, 70);
            receipts.add("half", message, transactional.sendMessageInTransaction(message, states[i % states.length]));
        }
        Clients.await("ends of transactions", () -> endedTransactions() == before + 4);
    }

    /** The body of an op message lists the half messages it ends, each with a comma behind it. */
    private long endedTransactions() throws Exception {
        DefaultMQPullConsumer consumer = opReader();
        long ended = 0;
        long position = 0;
        while (true) {
            PullResult result = consumer.pull(clients.queue(OP_TOPIC, 0), "*", position, 32);
            if (result.getPullStatus() != PullStatus.FOUND) {
                return ended;
            }
            for (MessageExt message : result.getMsgFoundList()) {
                ended += new String(message.getBody(), StandardCharsets.UTF_8).chars().filter(c -> c == ',').count();
            }
            position = result.getNextBeginOffset();
        }
    }

    private DefaultMQPullConsumer opReader;

    private DefaultMQPullConsumer opReader() throws Exception {
        if (opReader == null) {
            opReader = clients.puller("FillOpReader", true);
        }
        return opReader;
    }
}
