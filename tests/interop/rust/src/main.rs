//! Drives the stock Rust client through what it can do, each scenario checking what came of it.
//!
//!     driver NAMESRV NAME     topics "Round-NAME", "Tags-NAME", ... exist already
//!
//! A line "RESULT scenario ok" or "RESULT scenario failed: reason" for each; the last line is PASS or FAIL.

#![recursion_limit = "512"]

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::process::exit;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rocketmq_client_rust::{
    ClientResult, ClientRuntime, ClientRuntimeConfig, ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus,
    ConsumeOrderlyContext, ConsumeOrderlyStatus, DefaultMQProducer, DefaultMQPushConsumer, MQPushConsumer,
    MessageListenerConcurrently, MessageListenerOrderly, MessageQueueSelector, SelectMessageQueueByHash,
};
use rocketmq_model::common::consumer::consume_from_where::ConsumeFromWhere;
use rocketmq_model::common::message::message_builder::MessageBuilder;
use rocketmq_model::common::message::message_ext::MessageExt;
use rocketmq_model::common::message::message_single::Message;
use rocketmq_observability::TelemetryRuntimeGuard;
use rocketmq_runtime::RuntimeOwner;

const COUNT: usize = 20;
const WAIT: Duration = Duration::from_secs(40);
const RETRY_BODY: &str = "again";
const LATE_MS: i64 = 3000;

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

/// What a consumer was given, as plain values.
#[derive(Clone, Debug)]
struct Got {
    body: String,
    topic: String,
    tag: String,
    queue_id: i32,
    queue_offset: i64,
    reconsume_times: i32,
    arrived_ms: i64,
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64
}

#[derive(Clone, Default)]
struct Received(Arc<Mutex<Vec<Got>>>);

impl Received {
    fn add(&self, message: &MessageExt) -> Got {
        let got = Got {
            body: String::from_utf8(message.body().unwrap_or_default().to_vec()).unwrap_or_default(),
            topic: message.topic().to_string(),
            tag: message.get_tags().map(|tag| tag.to_string()).unwrap_or_default(),
            queue_id: message.queue_id(),
            queue_offset: message.queue_offset(),
            reconsume_times: message.reconsume_times(),
            arrived_ms: now_ms(),
        };
        self.0.lock().unwrap().push(got.clone());
        got
    }

    fn all(&self) -> Vec<Got> {
        self.0.lock().unwrap().clone()
    }

    async fn count(&self, count: usize) -> Outcome {
        let deadline = Instant::now() + WAIT;
        while self.all().len() < count {
            if Instant::now() > deadline {
                return Err(format!("waited in vain for {count} messages, have {}", self.all().len()).into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Wait for all of these; fail if anything else came, or anything twice.
    async fn exactly(&self, expected: &[String]) -> Outcome {
        self.count(expected.len()).await?;
        let mut bodies: Vec<String> = self.all().into_iter().map(|got| got.body).collect();
        let mut expected = expected.to_vec();
        bodies.sort();
        expected.sort();
        equal(bodies, expected, "received")
    }
}

struct Concurrently(Received);

impl MessageListenerConcurrently for Concurrently {
    fn consume_message(
        &self,
        messages: &[&MessageExt],
        _context: &ConsumeConcurrentlyContext,
    ) -> ClientResult<ConsumeConcurrentlyStatus> {
        let again = messages.iter().map(|message| self.0.add(message)).any(|got| {
            got.body == RETRY_BODY && got.reconsume_times < 2
        });
        Ok(if again { ConsumeConcurrentlyStatus::ReconsumeLater } else { ConsumeConcurrentlyStatus::ConsumeSuccess })
    }
}

struct Orderly(Received);

impl MessageListenerOrderly for Orderly {
    fn consume_message(
        &self,
        messages: &[&MessageExt],
        context: &mut ConsumeOrderlyContext,
    ) -> ClientResult<ConsumeOrderlyStatus> {
        context.set_auto_commit(true);
        messages.iter().for_each(|message| drop(self.0.add(message)));
        Ok(ConsumeOrderlyStatus::Success)
    }
}

fn equal<T: PartialEq + std::fmt::Debug>(actual: T, expected: T, what: &str) -> Outcome {
    if actual == expected { Ok(()) } else { Err(format!("{what}: {actual:?} instead of {expected:?}").into()) }
}

struct Session {
    runtime: Arc<ClientRuntime>,
    name_server: String,
    name: String,
}

impl Session {
    fn topic(&self, what: &str) -> String {
        format!("{what}-{}", self.name)
    }

    fn message(&self, what: &str, tag: &str, body: &str) -> MessageBuilder {
        Message::builder().topic(self.topic(what)).body(body.as_bytes().to_vec()).tags(tag).key(format!("key-{body}"))
    }

    async fn producer(&self, what: &str) -> Result<DefaultMQProducer, Box<dyn Error + Send + Sync>> {
        let mut producer = DefaultMQProducer::builder(self.runtime.clone())
            .producer_group(format!("PID-{what}-{}", self.name))
            .name_server_addr(self.name_server.clone())
            .build();
        producer.start().await?;
        Ok(producer)
    }

    fn consumer(&self, what: &str) -> DefaultMQPushConsumer {
        DefaultMQPushConsumer::builder(self.runtime.clone())
            .consumer_group(format!("GID-{what}-{}", self.name))
            .name_server_addr(self.name_server.clone())
            .consume_from_where(ConsumeFromWhere::ConsumeFromFirstOffset)
            .build()
    }

    async fn reading(&self, what: &str, tags: &str) -> Result<(DefaultMQPushConsumer, Received), Box<dyn Error + Send + Sync>> {
        let received = Received::default();
        let mut consumer = self.consumer(what);
        consumer.subscribe(self.topic(what), tags).await?;
        consumer.register_message_listener_concurrently(Concurrently(received.clone()));
        consumer.start().await?;
        Ok((consumer, received))
    }

    async fn send(&self, what: &str) -> Result<Vec<String>, Box<dyn Error + Send + Sync>> {
        let mut producer = self.producer(what).await?;
        let mut bodies = Vec::new();
        for number in 0..COUNT {
            let body = format!("{what} ü 消息 {number}");
            let message = self.message(what, &format!("Tag{}", number % 3), &body).build()?;
            producer.send(message).await?.ok_or("no result")?;
            bodies.push(body);
        }
        producer.shutdown().await;
        Ok(bodies)
    }

    async fn round_trip(&self) -> Outcome {
        let (mut consumer, received) = self.reading("Round", "*").await?;
        let bodies = self.send("Round").await?;
        received.exactly(&bodies).await?;
        let mut queues: BTreeMap<i32, BTreeSet<i64>> = BTreeMap::new();
        for got in received.all() {
            let number: usize = got.body.rsplit(' ').next().unwrap().parse()?;
            equal(got.topic, self.topic("Round"), "topic")?;
            equal(got.tag, format!("Tag{}", number % 3), "tag")?;
            equal(got.reconsume_times, 0, "reconsume times")?;
            queues.entry(got.queue_id).or_default().insert(got.queue_offset);
        }
        for (queue_id, offsets) in queues {
            let dense: BTreeSet<i64> = (0..offsets.len() as i64).collect();
            equal(offsets, dense, &format!("offsets of queue {queue_id}"))?;
        }
        consumer.shutdown().await;
        Ok(())
    }

    async fn tag_filter(&self) -> Outcome {
        let (mut consumer, received) = self.reading("Tags", "Tag0").await?;
        let bodies = self.send("Tags").await?;
        let wanted: Vec<String> =
            bodies.into_iter().enumerate().filter(|(number, _)| number % 3 == 0).map(|(_, body)| body).collect();
        received.exactly(&wanted).await?;
        consumer.shutdown().await;
        Ok(())
    }

    async fn orderly(&self) -> Outcome {
        let received = Received::default();
        let mut consumer = self.consumer("Orderly");
        consumer.subscribe(self.topic("Orderly"), "*").await?;
        consumer.register_message_listener_orderly(Orderly(received.clone()));
        consumer.start().await?;
        let mut producer = self.producer("Orderly").await?;
        let selector = SelectMessageQueueByHash;
        let mut bodies = Vec::new();
        for number in 0..COUNT {
            let key = number % 3;
            bodies.push(format!("{key}/{number}"));
            let message = self.message("Orderly", "A", &bodies[number]).build()?;
            producer.send_with_selector(message, |queues, message, key| selector.select(queues, message, key), &key).await?;
        }
        producer.shutdown().await;
        received.exactly(&bodies).await?;
        for key in 0..3 {
            let own: Vec<Got> =
                received.all().into_iter().filter(|got| got.body.starts_with(&format!("{key}/"))).collect();
            let numbers: Vec<usize> = own.iter().map(|got| got.body[2..].parse().unwrap()).collect();
            let mut sorted = numbers.clone();
            sorted.sort();
            equal(numbers, sorted, &format!("order of key {key}"))?;
            let queues: BTreeSet<i32> = own.iter().map(|got| got.queue_id).collect();
            equal(queues.len(), 1, &format!("queues of key {key}"))?;
        }
        consumer.shutdown().await;
        Ok(())
    }

    async fn delay_level(&self) -> Outcome {
        let (mut consumer, received) = self.reading("Delay", "*").await?;
        let mut producer = self.producer("Delay").await?;
        let mut due = BTreeMap::new();
        for level in [1, 2] {
            let body = format!("level {level}");
            due.insert(body.clone(), now_ms() + i64::from(level) * 1000);
            producer.send(self.message("Delay", "A", &body).delay_level(level).build()?).await?;
        }
        producer.shutdown().await;
        received.count(2).await?;
        for got in received.all() {
            let late = got.arrived_ms - due[&got.body];
            equal((0..LATE_MS).contains(&late), true, &format!("{} came {late} ms after its time", got.body))?;
        }
        consumer.shutdown().await;
        Ok(())
    }

    async fn retry(&self) -> Outcome {
        let (mut consumer, received) = self.reading("Retry", "*").await?;
        let mut producer = self.producer("Retry").await?;
        producer.send(self.message("Retry", "A", RETRY_BODY).build()?).await?;
        producer.shutdown().await;
        received.count(3).await?;
        let times: Vec<i32> = received.all().iter().map(|got| got.reconsume_times).collect();
        equal(times, vec![0, 1, 2], "reconsume times")?;
        consumer.shutdown().await;
        Ok(())
    }
}

fn report(scenario: &str, outcome: Outcome) -> bool {
    match outcome {
        Ok(()) => println!("RESULT {scenario} ok"),
        Err(ref error) => println!("RESULT {scenario} failed: {}", error.to_string().replace('\n', " ")),
    }
    outcome.is_ok()
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let owner = RuntimeOwner::new()?;
    let telemetry = TelemetryRuntimeGuard::noop();
    let runtime = ClientRuntime::try_new(
        owner.root_context().component("driver"),
        ClientRuntimeConfig::default(),
        telemetry.handle(),
    )?;
    let session = Session { runtime: runtime.clone(), name_server: arguments[1].clone(), name: arguments[2].clone() };
    let passed = owner.block_on(async {
        let outcomes = [
            report("round_trip", session.round_trip().await),
            report("tag_filter", session.tag_filter().await),
            report("orderly", session.orderly().await),
            report("delay_level", session.delay_level().await),
            report("retry", session.retry().await),
        ];
        runtime.shutdown().await;
        outcomes.iter().all(|ok| *ok)
    });
    println!("{}", if passed { "PASS" } else { "FAIL" });
    // Whatever is still running belongs to a scenario that failed.
    exit(i32::from(!passed));
}
