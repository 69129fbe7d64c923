//! A channel for the newest value, as tokio's `watch`. Its receivers wake in the order in which they
//! began to wait; those of `watch` wake in a random order, with which no run of the simulation could
//! be repeated.

use std::{fmt, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The sender of a value is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closed;

struct Channel<T> {
    state: Mutex<ChannelState<T>>,
    changed: Notify,
}

struct ChannelState<T> {
    value: T,
    version: u64,
    closed: bool,
}

/// The only sender.
pub struct OrderedSender<T> {
    channel: Arc<Channel<T>>,
}

/// A receiver. A clone has seen what its original had seen.
pub struct OrderedReceiver<T> {
    channel: Arc<Channel<T>>,
    seen: u64,
}

impl<T> Clone for OrderedReceiver<T> {
    fn clone(&self) -> Self {
        Self {
            channel: Arc::clone(&self.channel),
            seen: self.seen,
        }
    }
}

impl<T> fmt::Debug for OrderedReceiver<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("OrderedReceiver")
    }
}

impl<T> fmt::Debug for OrderedSender<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("OrderedSender")
    }
}

/// A channel with its first value, which no receiver counts as a change.
pub fn ordered_watch<T>(value: T) -> (OrderedSender<T>, OrderedReceiver<T>) {
    let channel = Arc::new(Channel {
        state: Mutex::new(ChannelState {
            value,
            version: 0,
            closed: false,
        }),
        changed: Notify::new(),
    });
    let receiver = OrderedReceiver {
        channel: Arc::clone(&channel),
        seen: 0,
    };
    (OrderedSender { channel }, receiver)
}

impl<T> OrderedSender<T> {
    /// Replaces the value and wakes the receivers.
    pub fn send(&self, value: T) {
        self.replace(value, true);
        self.channel.changed.notify_waiters();
    }

    /// Replaces the value, which counts as no change: no receiver wakes.
    pub fn send_unnoticed(&self, value: T) {
        self.replace(value, false);
    }

    fn replace(&self, value: T, is_change: bool) {
        let mut state = self.channel.state.lock();
        let before = std::mem::replace(&mut state.value, value);
        state.version += u64::from(is_change);
        drop(state);
        // Dropped without the lock, since a value may be large.
        drop(before);
    }

    /// A receiver that has seen the present value.
    pub fn subscribe(&self) -> OrderedReceiver<T> {
        let seen = self.channel.state.lock().version;
        OrderedReceiver {
            channel: Arc::clone(&self.channel),
            seen,
        }
    }
}

impl<T> Drop for OrderedSender<T> {
    fn drop(&mut self) {
        self.channel.state.lock().closed = true;
        self.channel.changed.notify_waiters();
    }
}

impl<T: Clone> OrderedReceiver<T> {
    /// The present value; whether it was seen stays as it was.
    pub fn get(&self) -> T {
        self.channel.state.lock().value.clone()
    }

    /// The present value; it counts as seen.
    pub fn get_and_mark_seen(&mut self) -> T {
        let state = self.channel.state.lock();
        self.seen = state.version;
        state.value.clone()
    }

    /// Waits for a value that was not seen yet, and returns it.
    ///
    /// # Errors
    /// [`Closed`] if the sender is gone and its last value was seen.
    pub async fn changed(&mut self) -> Result<T, Closed> {
        let channel = Arc::clone(&self.channel);
        loop {
            // A change after this line wakes it.
            let changed = channel.changed.notified();
            {
                let state = channel.state.lock();
                if state.version != self.seen {
                    self.seen = state.version;
                    return Ok(state.value.clone());
                }
                if state.closed {
                    return Err(Closed);
                }
            }
            changed.await;
        }
    }

    /// Waits for a value of which `is_wanted` is true, and returns it.
    ///
    /// # Errors
    /// [`Closed`] if the sender is gone and no such value came.
    pub async fn wait_for(&mut self, is_wanted: impl Fn(&T) -> bool) -> Result<T, Closed> {
        let mut value = self.get_and_mark_seen();
        while !is_wanted(&value) {
            value = self.changed().await?;
        }
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_receiver_sees_the_newest_value_and_then_the_end() {
        let (sender, mut receiver) = ordered_watch(1);
        assert_eq!(receiver.get(), 1);
        sender.send(2);
        sender.send(3);
        let mut clone = receiver.clone();
        assert_eq!(receiver.changed().await, Ok(3));
        assert_eq!(clone.changed().await, Ok(3));
        let mut late = sender.subscribe();
        drop(sender);
        assert_eq!(receiver.changed().await, Err(Closed));
        assert_eq!(late.changed().await, Err(Closed));
        assert_eq!(late.wait_for(|value| *value == 3).await, Ok(3));
        assert_eq!(late.wait_for(|value| *value == 4).await, Err(Closed));
    }

    #[tokio::test]
    async fn receivers_wake_in_the_order_of_their_waits() {
        let (sender, receiver) = ordered_watch(0);
        let woken = Arc::new(Mutex::new(Vec::new()));
        let tasks: Vec<_> = (0..20)
            .map(|number| {
                let (mut receiver, woken) = (receiver.clone(), Arc::clone(&woken));
                tokio::spawn(async move {
                    let value = receiver.wait_for(|value| *value == 1).await;
                    woken.lock().push(number);
                    value
                })
            })
            .collect();
        tokio::task::yield_now().await;
        sender.send(1);
        for task in tasks {
            assert_eq!(task.await.expect("ended"), Ok(1));
        }
        assert_eq!(*woken.lock(), (0..20).collect::<Vec<_>>());
    }
}
