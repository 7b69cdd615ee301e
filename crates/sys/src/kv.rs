//! Local metadata: a small durable key-value store (redb) in one file.

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redb::backends::InMemoryBackend;
use redb::{
    Database, DatabaseError, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition,
};

use crate::syscall::at;

const META: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("meta");
/// Topic records are some hundred bytes and read once, at start.
const CACHE_BYTES: usize = 4 << 20;

/// Text keys to bytes. Clones share the store; the last one closes it.
#[derive(Clone)]
pub struct Kv(Arc<Shared>);

struct Shared {
    path: PathBuf,
    make: Make,
    /// None while it cannot be opened again after a failure.
    database: Mutex<Option<Database>>,
}

type Make = fn(&Path) -> Result<Database, redb::Error>;

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
    /// With the path in the text: `InvalidData` if it is no such store or is damaged, and then it is
    /// left as it is; else it is held by another process, or the disk said no.
    pub fn open(path: &Path) -> io::Result<Self> {
        check(path)?;
        Self::open_with(path, |path| {
            let mut builder = redb::Builder::new();
            builder.set_cache_size(CACHE_BYTES);
            Ok(builder.create(path)?)
        })
    }

    fn open_with(path: &Path, make: Make) -> io::Result<Self> {
        let open = || -> Result<Database, redb::Error> {
            let database = make(path)?;
            // The table is made now, so that a load of a new store needs no special case.
            let mut transaction = database.begin_write()?;
            transaction.set_two_phase_commit(true);
            transaction.open_table(META)?;
            transaction.commit()?;
            Ok(database)
        };
        let fresh = !path.exists();
        let database = open().map_err(|error| failed("open metadata", path, &error))?;
        if fresh && let Some(dir) = path.parent() {
            crate::file::sync_dir(dir)?;
        }
        Ok(Self(Arc::new(Shared {
            path: path.to_owned(),
            make,
            database: Mutex::new(Some(database)),
        })))
    }

    /// All pairs, by rising key.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn load(&self) -> io::Result<Vec<(String, Vec<u8>)>> {
        let open = self.0.lock();
        let load = || -> Result<Vec<(String, Vec<u8>)>, redb::Error> {
            let database = open.as_ref().ok_or(redb::Error::PreviousIo)?;
            let table = database.begin_read()?.open_table(META)?;
            let mut pairs = Vec::new();
            for pair in table.iter()? {
                let (key, value) = pair?;
                pairs.push((key.value().to_owned(), value.value().to_vec()));
            }
            Ok(pairs)
        };
        load().map_err(|error| io::Error::other(format!("read metadata: {error}")))
    }

    /// Does all of `writes` or none of them, durably: one transaction, synced before it returns.
    /// It blocks for two disk syncs, so shards send it to the pool
    /// ([`FileTask::Kv`](crate::FileTask)).
    ///
    /// # Errors
    /// When it could not be made durable; the store is as before, and once the reason is gone it
    /// takes writes again.
    pub fn apply(&self, writes: &[KvWrite]) -> io::Result<()> {
        let mut open = self.0.lock();
        let in_words = |error| failed("write metadata", &self.0.path, &error);
        let database = match open.take() {
            Some(database) => database,
            None => self.0.reopen().map_err(in_words)?,
        };
        let Err(error) = write(&database, writes) else {
            *open = Some(database);
            return Ok(());
        };
        // After an error of the disk redb refuses everything until it is opened again. What it had
        // given up may be found complete then.
        drop(database);
        *open = self.0.reopen().ok();
        let done = open
            .as_ref()
            .is_some_and(|it| holds(it, writes).unwrap_or(false));
        if done { Ok(()) } else { Err(in_words(error)) }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Option<Database>> {
        self.database.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reopen(&self) -> Result<Database, redb::Error> {
        (self.make)(&self.path)
    }
}

fn write(database: &Database, writes: &[KvWrite]) -> Result<(), redb::Error> {
    let mut transaction = database.begin_write()?;
    // The pages are synced before the header that names them: a failing disk, or a power cut, may keep
    // the one and lose the others, and redb 4.6 does not open a file whose root is a page of zeros.
    transaction.set_two_phase_commit(true);
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
}

/// Whether the store is as these writes leave it.
fn holds(database: &Database, writes: &[KvWrite]) -> Result<bool, redb::Error> {
    let table = database.begin_read()?.open_table(META)?;
    for write in writes {
        let found = table.get(write.key.as_str())?;
        if found.as_ref().map(|found| found.value()) != write.value.as_deref() {
            return Ok(false);
        }
    }
    Ok(true)
}

fn failed(what: &str, path: &Path, error: &redb::Error) -> io::Error {
    io::Error::other(format!("{what} {}: {error}", path.display()))
}

impl fmt::Debug for Kv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kv").finish_non_exhaustive()
    }
}

/// Looks whether a store is sound before redb changes anything in it, on a copy in memory: what is
/// damaged makes redb panic, or go back to an earlier transaction without a word.
fn check(path: &Path) -> io::Result<()> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) if bytes.is_empty() => return Ok(()),
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(at("open metadata", path, &error)),
    };
    let look = move || -> Result<bool, DatabaseError> {
        let copy = InMemoryBackend::new();
        copy.set_len(bytes.len() as u64)
            .and_then(|()| copy.write(0, &bytes))
            .map_err(redb::StorageError::from)?;
        drop(bytes);
        // Not dropped after a panic: a second one in there would end the process.
        let mut database = ManuallyDrop::new(redb::Builder::new().create_with_backend(copy)?);
        let sound = database.check_integrity();
        drop(ManuallyDrop::into_inner(database));
        sound
    };
    let why = match catch_unwind(look) {
        Ok(Ok(true)) => return Ok(()),
        Ok(Ok(false)) => "its checksums do not fit".to_owned(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "redb cannot make sense of it".to_owned(),
    };
    let path = path.display();
    let text = format!("open metadata {path}: damaged, or no store of this engine ({why})");
    Err(io::Error::new(io::ErrorKind::InvalidData, text))
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io;
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};

    use redb::backends::FileBackend;
    use redb::{Database, StorageBackend};

    use super::{Kv, KvWrite};

    static IS_FULL: AtomicBool = AtomicBool::new(false);

    /// A file on a disk that is full while [`IS_FULL`] says so.
    #[derive(Debug)]
    struct OnFullDisk(FileBackend);

    impl OnFullDisk {
        fn create(path: &Path) -> Result<Database, redb::Error> {
            let mut options = OpenOptions::new();
            let options = options.read(true).write(true).create(true).truncate(false);
            let file = FileBackend::new(options.open(path)?)?;
            Ok(redb::Builder::new().create_with_backend(OnFullDisk(file))?)
        }

        fn room() -> io::Result<()> {
            match IS_FULL.load(Ordering::Relaxed) {
                true => Err(io::ErrorKind::StorageFull.into()),
                false => Ok(()),
            }
        }
    }

    impl StorageBackend for OnFullDisk {
        fn len(&self) -> io::Result<u64> {
            self.0.len()
        }

        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            self.0.read(offset, out)
        }

        fn set_len(&self, len: u64) -> io::Result<()> {
            Self::room()?;
            self.0.set_len(len)
        }

        fn sync_data(&self) -> io::Result<()> {
            self.0.sync_data()
        }

        fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            Self::room()?;
            self.0.write(offset, data)
        }

        fn close(&self) -> io::Result<()> {
            self.0.close()
        }
    }

    #[test]
    fn a_store_on_a_disk_that_was_full_takes_writes_again() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("meta.redb");
        let kv = Kv::open_with(&path, OnFullDisk::create).expect("a new store");
        kv.apply(&[put("topic/a", "1")]).expect("a write");
        IS_FULL.store(true, Ordering::Relaxed);
        for _ in 0..2 {
            kv.apply(&[put("topic/b", "2")]).expect_err("no room");
        }
        IS_FULL.store(false, Ordering::Relaxed);
        kv.apply(&[put("topic/c", "3")]).expect("room again");
        let pairs = kv.load().expect("a load");
        let keys: Vec<_> = pairs.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["topic/a", "topic/c"]);
    }

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

    #[test]
    fn a_damaged_store_is_an_error_with_its_path_and_is_left_as_it_is() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("meta.redb");
        let kv = Kv::open(&path).expect("a new store");
        for i in 0..200 {
            let (key, value) = (format!("topic/{i:03}"), format!("{i:0300}"));
            kv.apply(&[put(&key, &value)]).expect("a write");
        }
        let pairs = kv.load().expect("a load");
        drop(kv);
        let sound = std::fs::read(&path).expect("a file");
        let (mut refused, mut random) = (0, 88_172_645_463_325_252_u64);
        let mut chance = |below: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random % below as u64) as usize
        };
        for round in 0..150 {
            let mut bytes = sound.clone();
            let at = chance(bytes.len());
            match round % 3 {
                0 => bytes[at] ^= 1 << chance(8),
                1 => bytes.truncate(at.max(1)),
                _ => bytes[at / 4_096 * 4_096..]
                    .iter_mut()
                    .take(4_096)
                    .for_each(|byte| *byte = 0),
            }
            std::fs::write(&path, &bytes).expect("a file");
            match Kv::open(&path) {
                Ok(kv) => assert_eq!(kv.load().expect("a load"), pairs, "round {round}"),
                Err(error) => {
                    refused += 1;
                    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
                    assert!(error.to_string().contains("meta.redb"), "{error}");
                    assert_eq!(
                        std::fs::read(&path).expect("a file"),
                        bytes,
                        "it was changed"
                    );
                }
            }
        }
        assert!(refused > 30, "{refused} of 150");
    }
}
