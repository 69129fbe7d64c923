//! Futures that read and write files of KAT's own disks between their waits.

use std::{
    future::{Future, poll_fn},
    pin::pin,
};

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    task::block_in_place,
};

/// Runs a future whose code may block, so that a slow disk holds up this future alone: each of its
/// steps first passes the other tasks of the runtime's thread to another thread. A runtime of one
/// thread, as in tests, has no such thread, and runs the steps as they are.
pub(crate) async fn may_block<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|context| match Handle::current().runtime_flavor() {
        RuntimeFlavor::CurrentThread => future.as_mut().poll(context),
        _ => block_in_place(|| future.as_mut().poll(context)),
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Arc, Barrier},
        time::Duration,
    };

    use super::*;

    /// With `tokio::spawn` alone this test never ends: three tasks block the runtime's two threads.
    #[test]
    fn tasks_that_block_hold_up_no_other_task() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let gate = Arc::new(Barrier::new(4));
        runtime.block_on(async {
            let blocked: Vec<_> = (0..3)
                .map(|_| {
                    let gate = Arc::clone(&gate);
                    tokio::spawn(may_block(async move {
                        tokio::task::yield_now().await;
                        gate.wait();
                    }))
                })
                .collect();
            // The gate opens only once another task has waited for its timer.
            let gate = Arc::clone(&gate);
            let opens = tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(100)).await;
                tokio::task::spawn_blocking(move || gate.wait().is_leader()).await
            });
            opens.await.unwrap().unwrap();
            for one in blocked {
                one.await.unwrap();
            }
        });
    }
}
