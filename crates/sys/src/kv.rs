//! Local metadata: a small durable key-value store (redb) in one file.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

const META: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("meta");
/// Topic records are some hundred bytes and read once, at start.
const CACHE_BYTES: usize = 4 << 20;

/// Text keys to bytes. Clones share the store; the last one closes it.
#[derive(Clone)]
pub struct Kv(Arc<Store>);

struct Store {
    database: Database,
    path: PathBuf,
}

/// One change of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvWrite {
    /// The key.
    pub key: String,
    /// The new value; `None` removes the key.
    pub value: Option<Vec<u8>>,
}

impl Kv {
    /// Opens the store in the file `path`, making it if there is none.
    ///
    /// # Errors
    /// With the path in the text: it is held by another process, is no such store, is damaged, or
    /// the disk said no.
    pub fn open(path: &Path) -> io::Result<Self> {
        let open = || -> Result<Database, redb::Error> {
            let mut builder = redb::Builder::new();
            builder.set_cache_size(CACHE_BYTES);
            let database = builder.create(path)?;
            // The table is made now, so that a load of a new store needs no special case.
            let transaction = database.begin_write()?;
            transaction.open_table(META)?;
            transaction.commit()?;
            Ok(database)
        };
        let fresh = !path.exists();
        let database = open().map_err(|error| failed("open metadata", path, &error))?;
        if fresh && let Some(dir) = path.parent() {
            crate::file::sync_dir(dir)?;
        }
        let path = path.to_owned();
        Ok(Self(Arc::new(Store { database, path })))
    }

    /// All pairs, by rising key.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn load(&self) -> io::Result<Vec<(String, Vec<u8>)>> {
        let load = || -> Result<Vec<(String, Vec<u8>)>, redb::Error> {
            let table = self.0.database.begin_read()?.open_table(META)?;
            let mut pairs = Vec::new();
            for pair in table.iter()? {
                let (key, value) = pair?;
                pairs.push((key.value().to_owned(), value.value().to_vec()));
            }
            Ok(pairs)
        };
        load().map_err(|error| failed("read metadata", &self.0.path, &error))
    }

    /// Does all of `writes` or none of them, durably: one transaction, synced before it returns.
    /// It blocks for two disk syncs, so shards send it to the pool
    /// ([`FileTask::Kv`](crate::FileTask)).
    ///
    /// # Errors
    /// When it could not be made durable; the store is as before.
    pub fn apply(&self, writes: &[KvWrite]) -> io::Result<()> {
        let apply = || -> Result<(), redb::Error> {
            let transaction = self.0.database.begin_write()?;
            {
                let mut table = transaction.open_table(META)?;
                for write in writes {
                    match &write.value {
                        Some(value) => table.insert(write.key.as_str(), value.as_slice())?,
                        None => table.remove(write.key.as_str())?,
                    };
                }
            }
            transaction.commit()?;
            Ok(())
        };
        apply().map_err(|error| failed("write metadata", &self.0.path, &error))
    }
}

fn failed(what: &str, path: &Path, error: &redb::Error) -> io::Error {
    io::Error::other(format!("{what} {}: {error}", path.display()))
}

impl fmt::Debug for Kv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kv").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::{Kv, KvWrite};

    fn put(key: &str, value: &str) -> KvWrite {
        KvWrite {
            key: key.to_owned(),
            value: Some(value.as_bytes().to_vec()),
        }
    }

    #[test]
    fn what_was_applied_is_there_after_a_reopen_in_key_order() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("meta.redb");
        let kv = Kv::open(&path).expect("a new store");
        assert_eq!(kv.load().expect("a load"), vec![]);
        kv.apply(&[put("topic/b", "2"), put("topic/a", "1")])
            .expect("a write");
        kv.apply(&[
            KvWrite {
                key: "topic/b".to_owned(),
                value: None,
            },
            put("topic/c", "3"),
        ])
        .expect("a write");
        drop(kv);
        let pairs = Kv::open(&path).expect("the store").load().expect("a load");
        let expected = [("topic/a", "1"), ("topic/c", "3")];
        assert!(
            pairs
                .iter()
                .map(|(k, v)| (k.as_str(), v.as_slice()))
                .eq(expected.iter().map(|(k, v)| (*k, v.as_bytes())))
        );
    }

    #[test]
    fn a_file_that_is_no_store_is_an_error_with_its_path() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("meta.redb");
        std::fs::write(&path, vec![7; 8192]).expect("a file");
        let error = Kv::open(&path).expect_err("not a store");
        assert!(error.to_string().contains("meta.redb"), "{error}");
    }
}
