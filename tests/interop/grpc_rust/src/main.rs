// Scenarios of the official RocketMQ 5 client for Rust. It has no push consumer, changes no invisible time, and its TLS
// is not written yet.
//
// Usage: driver ENDPOINTS SCENARIO TOPIC GROUP plain [ACCESS_KEY SECRET]. The last line is PASS, or FAIL with the
// reason; the exit code is 0 or 1.

use std::collections::BTreeMap;
use std::env;
use std::fmt::Debug;
use std::process::exit;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};

const WAIT: Duration = Duration::from_secs(60);
type Outcome<T = ()> = Result<T, String>;

fn text<T, E: Debug>(result: Result<T, E>) -> Outcome<T> {
    result.map_err(|error| format!("{error:?}"))
}

fn check(holds: bool, reason: impl Into<String>) -> Outcome {
    if holds { Ok(()) } else { Err(reason.into()) }
}

fn same(found: Vec<String>, wanted: &[&str], what: &str) -> Outcome {
    check(found == wanted, format!("{what} {found:?}"))
}

fn sorted(mut words: Vec<String>) -> Vec<String> {
    words.sort();
    words
}

fn bodies(views: &[MessageView]) -> Vec<String> {
    views.iter().map(|view| String::from_utf8_lossy(view.body()).into_owned()).collect()
}

struct Driver {
    endpoints: String,
    topic: String,
    group: String,
    credentials: Option<(String, String)>,
}

impl Driver {
    fn client(&self) -> ClientOption {
        let mut option = ClientOption::default();
        option.set_access_url(&self.endpoints);
        option.set_long_polling_timeout(Duration::from_secs(10));
        if let Some((access_key, secret)) = &self.credentials {
            option.set_access_key(access_key);
            option.set_secret_key(secret);
        }
        option
    }

    fn publishing(&self) -> ProducerOption {
        let mut option = ProducerOption::default();
        option.set_topics(vec![self.topic.clone()]);
        option
    }

    async fn producer(&self) -> Outcome<Producer> {
        let mut producer = text(Producer::new(self.publishing(), self.client()))?;
        text(producer.start().await)?;
        Ok(producer)
    }

    async fn consumer(&self) -> Outcome<SimpleConsumer> {
        let mut option = SimpleConsumerOption::default();
        option.set_topics(vec![self.topic.clone()]);
        option.set_consumer_group(&self.group);
        let mut consumer = text(SimpleConsumer::new(option, self.client()))?;
        text(consumer.start().await)?;
        Ok(consumer)
    }

    fn message(&self, body: &str) -> MessageBuilder {
        MessageBuilder::builder().set_topic(&self.topic).set_body(body.into())
    }

    async fn send(&self, producer: &Producer, message: MessageBuilder) -> Outcome<String> {
        let receipt = text(producer.send(text(message.build())?).await)?;
        Ok(receipt.message_id().to_string())
    }

    /// Returns so many messages, acknowledged. A poll without messages is an error of this client.
    async fn take(&self, consumer: &SimpleConsumer, filter: &FilterExpression, count: usize) -> Outcome<Vec<MessageView>> {
        let end = Instant::now() + WAIT;
        let mut found = Vec::new();
        while found.len() < count {
            check(Instant::now() < end, format!("only {} of {count} messages", found.len()))?;
            match consumer.receive(&self.topic, filter).await {
                Ok(views) => {
                    for view in views {
                        text(consumer.ack(&view).await)?;
                        found.push(view);
                    }
                }
                Err(error) => check(format!("{error:?}").contains("MessageNotFound"), format!("{error:?}"))?,
            }
        }
        Ok(found)
    }

    // --- Scenarios ---

    async fn normal(&self) -> Outcome {
        let (producer, consumer) = (self.producer().await?, self.consumer().await?);
        let mut sent = Vec::new();
        for number in 0..10 {
            let message = self
                .message(&format!("body-{number}"))
                .set_tag("created")
                .set_keys(vec![format!("k{number}"), "all".to_string()])
                .set_properties([("colour", "red")].into());
            sent.push(self.send(&producer, message).await?);
        }
        let found = self.take(&consumer, &FilterExpression::new(FilterType::Tag, "*"), 10).await?;
        for view in &found {
            let colour = view.properties().get("colour").map(String::as_str);
            check(
                view.tag() == Some("created") && view.keys().len() == 2 && colour == Some("red") && view.delivery_attempt() == 1,
                format!("{view:?}"),
            )?;
        }
        let ids = found.iter().map(|view| view.message_id().to_string()).collect();
        check(sorted(ids) == sorted(sent), "other ids")?;
        let wanted: Vec<String> = (0..10).map(|number| format!("body-{number}")).collect();
        check(sorted(bodies(&found)) == wanted, "other bodies")?;
        text(producer.shutdown().await)?;
        text(consumer.shutdown().await)
    }

    async fn fifo(&self) -> Outcome {
        let (producer, consumer) = (self.producer().await?, self.consumer().await?);
        for number in 0..12 {
            let group = format!("group-{}", number % 2);
            let message = MessageBuilder::fifo_message_builder(&self.topic, number.to_string().into(), group);
            self.send(&producer, message).await?;
        }
        let mut found = BTreeMap::<String, Vec<String>>::new();
        for view in self.take(&consumer, &FilterExpression::new(FilterType::Tag, "*"), 12).await? {
            let group = view.message_group().unwrap_or_default().to_string();
            found.entry(group).or_default().extend(bodies(&[view]));
        }
        same(found.remove("group-0").unwrap_or_default(), &["0", "2", "4", "6", "8", "10"], "order")?;
        same(found.remove("group-1").unwrap_or_default(), &["1", "3", "5", "7", "9", "11"], "order")
    }

    async fn delay(&self) -> Outcome {
        let (producer, consumer) = (self.producer().await?, self.consumer().await?);
        let due = SystemTime::now() + Duration::from_secs(3);
        let due_s = text(due.duration_since(UNIX_EPOCH))?.as_secs() as i64;
        let message = MessageBuilder::delay_message_builder(&self.topic, "later".into(), due_s);
        self.send(&producer, message).await?;
        self.take(&consumer, &FilterExpression::new(FilterType::Tag, "*"), 1).await?;
        check(SystemTime::now() > due - Duration::from_secs(2), "came early")
    }

    async fn transaction(&self) -> Outcome {
        let checked = Arc::new(Mutex::new(Vec::<String>::new()));
        let seen = checked.clone();
        let mut producer = text(Producer::new_transaction_producer(
            self.publishing(),
            self.client(),
            Box::new(move |_, view| {
                let body = String::from_utf8_lossy(view.body()).into_owned();
                let is_rolled_back = body == "rolled back";
                seen.lock().unwrap().push(body);
                if is_rolled_back { TransactionResolution::ROLLBACK } else { TransactionResolution::COMMIT }
            }),
        ))?;
        text(producer.start().await)?;
        let consumer = self.consumer().await?;
        let half = |body: &str| MessageBuilder::transaction_message_builder(&self.topic, body.into()).build();
        text(text(producer.send_transaction_message(text(half("committed"))?).await)?.commit().await)?;
        text(text(producer.send_transaction_message(text(half("rolled back"))?).await)?.rollback().await)?;
        text(producer.send_transaction_message(text(half("checked"))?).await)?;
        let mut found = Vec::new(); // a broker may ask for what was just committed, too: it comes twice
        while found.len() < 2 {
            for body in bodies(&self.take(&consumer, &FilterExpression::new(FilterType::Tag, "*"), 1).await?) {
                if !found.contains(&body) {
                    found.push(body);
                }
            }
        }
        same(sorted(found), &["checked", "committed"], "bodies")?;
        let words = checked.lock().unwrap().clone();
        check(words.contains(&"checked".to_string()), format!("checked {words:?}"))
    }

    async fn filter(&self) -> Outcome {
        let (producer, consumer) = (self.producer().await?, self.consumer().await?);
        for tag in ["a", "b", "c", "d"] {
            self.send(&producer, self.message(&format!("tag {tag}")).set_tag(tag)).await?;
        }
        let by_tag = FilterExpression::new(FilterType::Tag, "b || c");
        same(sorted(bodies(&self.take(&consumer, &by_tag, 2).await?)), &["tag b", "tag c"], "by tag")?;
        for size in ["2", "7"] {
            let message = self.message(&format!("size {size}")).set_tag("b").set_properties([("size", size)].into());
            self.send(&producer, message).await?;
        }
        let by_sql = FilterExpression::new(FilterType::Sql, "size > 5");
        same(bodies(&self.take(&consumer, &by_sql, 1).await?), &["size 7"], "by SQL")
    }

    async fn refused(&self) -> Outcome {
        let error = match self.producer().await {
            Ok(producer) => self.send(&producer, self.message("never")).await.err(),
            Err(error) => Some(error),
        };
        let reason = error.ok_or("was let in")?;
        check(reason.contains("Unauthorized") || reason.contains("signature"), reason)
    }
}

#[tokio::main]
async fn main() {
    let words: Vec<String> = env::args().skip(1).collect();
    let driver = Driver {
        endpoints: words[0].clone(),
        topic: words[2].clone(),
        group: words[3].clone(),
        credentials: words.get(5).zip(words.get(6)).map(|(key, secret)| (key.clone(), secret.clone())),
    };
    let outcome = match words[1].as_str() {
        "normal" => driver.normal().await,
        "fifo" => driver.fifo().await,
        "delay" => driver.delay().await,
        "transaction" => driver.transaction().await,
        "filter" => driver.filter().await,
        "refused" => driver.refused().await,
        other => Err(format!("no scenario {other}")),
    };
    match outcome {
        Ok(()) => println!("PASS"),
        Err(reason) => {
            println!("FAIL {reason}");
            exit(1);
        }
    }
}
