//! A snapshot of a member's data, in the form that `etcdutl snapshot restore` reads.

use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::{sync::mpsc, time::timeout};

use super::{EtcdStore, error};
use crate::StoreError;

/// Longest wait for the next piece.
const PIECE_LIMIT: Duration = Duration::from_secs(20);
/// Bytes of the hash at the end of the stream.
const HASH: usize = 32;
/// The database file consists of whole sectors of this size.
const SECTOR: u64 = 512;

/// Streams the snapshot of the member that answers into `pieces`, including the hash at its end,
/// which is checked here. Returns the number of bytes. On an error the caller has to discard
/// everything received.
///
/// # Errors
/// [`StoreError::Unavailable`] if the stream breaks off, its hash does not match, or the receiver
/// is gone; else the error of etcd. Needs etcd's root role.
pub async fn snapshot(
    store: &EtcdStore,
    pieces: &mpsc::Sender<Vec<u8>>,
) -> Result<u64, StoreError> {
    let mut stream = store
        .call(false, |client| async move {
            client.maintenance_client().snapshot().await
        })
        .await?;
    let mut check = SnapshotHash::default();
    loop {
        let next = timeout(PIECE_LIMIT, stream.message()).await;
        let next = next.map_err(|_| broken_snapshot("nothing came for a while"))?;
        let Some(piece) = next.map_err(|failure| error::store_error(&failure, 0))? else {
            return check.finish();
        };
        check.add(piece.blob());
        let sent = pieces.send(piece.blob().to_vec()).await;
        sent.map_err(|_| broken_snapshot("nobody takes it"))?;
    }
}

fn broken_snapshot(why: &str) -> StoreError {
    StoreError::Unavailable(format!("etcd's snapshot is not whole: {why}"))
}

/// Checks that a stream ends with the hash of what came before.
#[derive(Default)]
struct SnapshotHash {
    hash: Sha256,
    /// The last bytes, which may be the hash.
    tail: Vec<u8>,
    bytes: u64,
}

impl SnapshotHash {
    fn add(&mut self, piece: &[u8]) {
        self.bytes = self.bytes.saturating_add(piece.len() as u64);
        self.tail.extend_from_slice(piece);
        let before = self.tail.len().saturating_sub(HASH);
        self.hash
            .update(self.tail.get(..before).unwrap_or_default());
        self.tail.drain(..before);
    }

    fn finish(self) -> Result<u64, StoreError> {
        let data = self.bytes.saturating_sub(HASH as u64);
        if data == 0 || !data.is_multiple_of(SECTOR) || self.tail.len() != HASH {
            return Err(broken_snapshot("its length is wrong"));
        }
        if self.hash.finalize().as_slice() != self.tail {
            return Err(broken_snapshot("its hash does not fit"));
        }
        Ok(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(stream: &[u8], piece: usize) -> Result<u64, StoreError> {
        let mut check = SnapshotHash::default();
        stream.chunks(piece).for_each(|piece| check.add(piece));
        check.finish()
    }

    #[test]
    fn only_a_whole_stream_passes() {
        let data = vec![3; 4096];
        let whole = [data.as_slice(), Sha256::digest(&data).as_slice()].concat();
        for piece in [1, 31, 32, 33, 4096, 8192] {
            assert_eq!(checked(&whole, piece).unwrap(), 4128, "{piece}");
        }
        let mut changed = whole.clone();
        changed[100] ^= 1;
        checked(&changed, 1000).unwrap_err();
        checked(&whole[..whole.len() - 1], 1000).unwrap_err();
        checked(&whole[512..], 1000).unwrap_err();
        checked(&data, 1000).unwrap_err();
        checked(&[], 1000).unwrap_err();
        checked(Sha256::digest([]).as_slice(), 1000).unwrap_err();
    }
}
