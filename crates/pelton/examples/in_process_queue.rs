//! A queue between threads of one process: one producer, two workers that share the work, one
//! worker that fails now and then and gets the job again. Nothing touches a disk.
//!
//! `cargo run -p pelton --example in_process_queue`

use std::error::Error;
use std::time::Duration;

use pelton::{Engine, SubscriptionKind};

const JOBS: u32 = 10_000;

/// An error that can leave its thread.
type Failed = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failed> {
    let engine = Engine::in_memory().open()?;
    let jobs = engine.topic("jobs").open()?;

    // Workers subscribe first: a topic without subscriptions keeps nothing.
    let mut workers = Vec::new();
    for name in ["first", "second"] {
        let subscribe = jobs
            .subscribe("workers")
            .kind(SubscriptionKind::Shared)
            .name(name);
        workers.push(subscribe.open()?);
    }

    let producer_topic = jobs.clone();
    std::thread::scope(|scope| -> Result<(), Failed> {
        let producer = scope.spawn(move || -> Result<(), Failed> {
            let mut producer = producer_topic.producer().name("main").open()?;
            for job in 0..JOBS {
                producer.send(job.to_le_bytes())?; // waits while the queue is full
            }
            producer.flush()?; // every job is stored (here: in memory)
            Ok(())
        });

        // Both workers stop when they have seen that nothing is left.
        let running: Vec<_> = workers
            .into_iter()
            .map(|mut worker| {
                scope.spawn(move || -> Result<(u32, u32), Failed> {
                    let (mut done, mut failed) = (0u32, 0u32);
                    while let Some(job) = worker.recv_timeout(Duration::from_millis(500))? {
                        let number = u32::from_le_bytes(job.payload().try_into().expect("4 bytes"));
                        if number % 1_000 == 7 && job.redelivery_count() == 0 {
                            failed += 1;
                            job.nack(); // comes again, to this worker or the other
                        } else {
                            done += 1;
                            job.ack();
                        }
                    }
                    Ok((done, failed))
                })
            })
            .collect();

        producer.join().expect("the producer does not panic")?;
        let mut total = 0;
        for (worker, handle) in running.into_iter().enumerate() {
            let (done, failed) = handle.join().expect("workers do not panic")?;
            println!("worker {worker}: {done} jobs done, {failed} handed back");
            total += done;
        }
        assert_eq!(total, JOBS, "every job was done once");
        Ok(())
    })?;

    let report = engine.shutdown(Duration::from_secs(5));
    println!(
        "stopped, clean: {}, after {} us",
        report.clean,
        report.took_ns / 1_000
    );
    Ok(())
}
