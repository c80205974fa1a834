//! A trait for the folder of a log: this file implements it with real files, the tests with a
//! simulated disk.

use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::FallocateFlags;

pub(super) trait Storage: Debug + Send + Sync {
    fn names(&self) -> io::Result<Vec<String>>;
    fn open(&self, name: &str) -> io::Result<Arc<dyn StoredFile>>;
    /// Creates an empty file, and replaces an old one.
    fn create(&self, name: &str) -> io::Result<Arc<dyn StoredFile>>;
    /// Renames a file, and replaces an old one.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes new, renamed and removed names durable.
    fn sync(&self) -> io::Result<()>;
}

pub(super) trait StoredFile: Debug + Send + Sync {
    fn n_bytes(&self) -> io::Result<u64>;
    /// Reads until `bytes` is full or the file ends.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes all slices, one after the other.
    fn write_at(&self, slices: &[&[u8]], offset: u64) -> io::Result<()>;
    fn set_len(&self, n_bytes: u64) -> io::Result<()>;
    /// Reserves space, so that later writes do not fail for lack of space.
    fn allocate(&self, n_bytes: u64) -> io::Result<()>;
    /// Makes the file's bytes and length durable.
    fn sync(&self) -> io::Result<()>;
}

/// A folder on a real file system.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    is_writable: bool,
}

impl Folder {
    /// Creates the folder if it does not exist. Only this user may read a new folder.
    pub(super) fn make(path: &Path) -> io::Result<Self> {
        if !path.is_dir() {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(path)?;
            if let Some(parent) = path
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty())
            {
                File::open(parent)?.sync_all()?;
            }
        }
        Ok(Self {
            path: path.to_owned(),
            is_writable: true,
        })
    }

    /// Returns an existing folder whose files are only read.
    pub(super) fn read_only(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            is_writable: false,
        }
    }

    fn file(&self, name: &str, is_new: bool) -> io::Result<Arc<dyn StoredFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(self.is_writable).mode(0o600);
        if is_new {
            options.create(true).truncate(true);
        }
        Ok(Arc::new(options.open(self.path.join(name))?))
    }
}

impl Storage for Folder {
    fn names(&self) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(&self.path)?;
        let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        names.collect()
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn StoredFile>> {
        self.file(name, false)
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn StoredFile>> {
        self.file(name, true)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }
}

/// Returns true if a folder, or its nearest existing parent, is in memory. Then a reboot, or the
/// end of a container's pod, loses the content.
pub fn is_in_memory(path: &Path) -> bool {
    const TMPFS: i128 = 0x0102_1994;
    const RAMFS: i128 = 0x8584_58f6;
    let file_system = path.ancestors().find_map(|path| {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        rustix::fs::statfs(path).ok()
    });
    file_system.is_some_and(|found| [TMPFS, RAMFS].contains(&i128::from(found.f_type)))
}

/// Maximum number of slices of one system call: `IOV_MAX` of Linux.
const MAX_SLICES: usize = 1024;

impl StoredFile for File {
    fn n_bytes(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut n_read = 0;
        while n_read < bytes.len() {
            match FileExt::read_at(self, &mut bytes[n_read..], offset + n_read as u64) {
                Ok(0) => break,
                Ok(n) => n_read += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(n_read)
    }

    fn write_at(&self, slices: &[&[u8]], mut offset: u64) -> io::Result<()> {
        let mut slices: Vec<IoSlice<'_>> = slices.iter().map(|slice| IoSlice::new(slice)).collect();
        let mut rest = &mut slices[..];
        while rest.iter().any(|slice| !slice.is_empty()) {
            let n_slices = rest.len().min(MAX_SLICES);
            match rustix::io::pwritev(self, &rest[..n_slices], offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    offset += n as u64;
                    IoSlice::advance_slices(&mut rest, n);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn set_len(&self, n_bytes: u64) -> io::Result<()> {
        File::set_len(self, n_bytes)
    }

    fn allocate(&self, n_bytes: u64) -> io::Result<()> {
        use rustix::io::Errno;
        match rustix::fs::fallocate(self, FallocateFlags::empty(), 0, n_bytes) {
            Ok(()) => Ok(()),
            // Without an allocation, a later write may find no space. The segment is then cut back.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => File::set_len(self, n_bytes),
            Err(error) => Err(error.into()),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}
