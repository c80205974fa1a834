//! A simulated disk for the tests. It records which data was synced and which was only written,
//! creates the states that can follow a power cut, and fails on demand. Any of the unsynced changes
//! may be missing after a power cut; the surviving changes apply in their order.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use crate::journal::storage::{Storage, StoredFile};
use crate::sync::Mutex;

/// Bytes that a power cut preserves or loses as a unit.
const SECTOR: usize = 512;

/// A disk. Clones share it.
#[derive(Debug, Clone, Default)]
pub(in crate::journal) struct ModelDisk(Arc<Mutex<DiskState>>);

#[derive(Debug, Default)]
struct DiskState {
    inodes: Vec<Inode>,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    unsynced_names: Vec<NameChange>,
    /// Number of operations so far, without reads.
    n_operations: usize,
    fault: Option<DiskFault>,
}

/// A fault of every operation whose number is in this range.
#[derive(Debug, Clone, Copy)]
pub(in crate::journal) struct DiskFault {
    pub(in crate::journal) from: usize,
    pub(in crate::journal) until: usize,
    pub(in crate::journal) kind: io::ErrorKind,
    /// True if half of a failing write is performed.
    pub(in crate::journal) is_short: bool,
}

#[derive(Debug, Clone, Default)]
struct Inode {
    content: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<Change>,
}

#[derive(Debug, Clone)]
enum Change {
    Sector(usize, Vec<u8>),
    Length(usize),
}

#[derive(Debug, Clone)]
enum NameChange {
    Set(String, usize),
    Gone(String),
}

/// The unsynced data that survives a power cut.
#[derive(Debug, Clone, Copy)]
pub(in crate::journal) enum Survival {
    Nothing,
    Everything,
    /// Each sector, length and name survives by chance.
    Some,
}

impl ModelDisk {
    pub(in crate::journal) fn n_operations(&self) -> usize {
        self.0.lock().n_operations
    }

    pub(in crate::journal) fn set_fault(&self, fault: Option<DiskFault>) {
        self.0.lock().fault = fault;
    }

    pub(in crate::journal) fn after_power_cut(
        &self,
        kept: Survival,
        rng: &mut fastrand::Rng,
    ) -> Self {
        let state = self.0.lock();
        let mut keeps = || match kept {
            Survival::Nothing => false,
            Survival::Everything => true,
            Survival::Some => rng.bool(),
        };
        let mut inodes = Vec::new();
        for inode in &state.inodes {
            let mut content = inode.durable.clone();
            for change in inode.unsynced.iter().filter(|_| keeps()) {
                apply(&mut content, change);
            }
            inodes.push(Inode {
                durable: content.clone(),
                content,
                unsynced: Vec::new(),
            });
        }
        let mut names = state.durable_names.clone();
        for change in state.unsynced_names.iter().filter(|_| keeps()) {
            match change {
                NameChange::Set(name, inode) => names.insert(name.clone(), *inode),
                NameChange::Gone(name) => names.remove(name),
            };
        }
        Self(Arc::new(Mutex::new(DiskState {
            inodes,
            durable_names: names.clone(),
            names,
            ..DiskState::default()
        })))
    }

    pub(in crate::journal) fn after_kill(&self) -> Self {
        self.after_power_cut(Survival::Everything, &mut fastrand::Rng::with_seed(0))
    }

    pub(in crate::journal) fn files(&self) -> Vec<(String, usize)> {
        let state = self.0.lock();
        let names = state.names.iter();
        names
            .map(|(name, inode)| (name.clone(), state.inodes[*inode].content.len()))
            .collect()
    }

    pub(in crate::journal) fn flip(&self, name: &str, byte: usize, bit: u8) {
        let mut state = self.0.lock();
        let inode = state.names[name];
        state.inodes[inode].content[byte] ^= 1 << bit;
        state.inodes[inode].durable = state.inodes[inode].content.clone();
    }

    fn operation(&self) -> io::Result<()> {
        let mut state = self.0.lock();
        state.n_operations += 1;
        match state.fault {
            Some(fault) if (fault.from..fault.until).contains(&state.n_operations) => {
                Err(fault.kind.into())
            }
            _ => Ok(()),
        }
    }

    fn inode(&self, name: &str) -> io::Result<usize> {
        let found = self.0.lock().names.get(name).copied();
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn set_name(state: &mut DiskState, name: &str, inode: usize) {
        state.names.insert(name.to_owned(), inode);
        state
            .unsynced_names
            .push(NameChange::Set(name.to_owned(), inode));
    }
}

fn apply(content: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Sector(at, bytes) => {
            if content.len() < at + bytes.len() {
                content.resize(at + bytes.len(), 0);
            }
            content[*at..at + bytes.len()].copy_from_slice(bytes);
        }
        Change::Length(n_bytes) => content.resize(*n_bytes, 0),
    }
}

impl Storage for ModelDisk {
    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.0.lock().names.keys().cloned().collect())
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn StoredFile>> {
        Ok(Arc::new(DiskFile {
            inode: self.inode(name)?,
            disk: self.clone(),
        }))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn StoredFile>> {
        self.operation()?;
        let mut state = self.0.lock();
        let inode = state.inodes.len();
        state.inodes.push(Inode::default());
        Self::set_name(&mut state, name, inode);
        Ok(Arc::new(DiskFile {
            inode,
            disk: self.clone(),
        }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.operation()?;
        let inode = self.inode(from)?;
        let mut state = self.0.lock();
        state.names.remove(from);
        state.unsynced_names.push(NameChange::Gone(from.to_owned()));
        Self::set_name(&mut state, to, inode);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.operation()?;
        self.inode(name)?;
        let mut state = self.0.lock();
        state.names.remove(name);
        state.unsynced_names.push(NameChange::Gone(name.to_owned()));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.operation()?;
        let mut state = self.0.lock();
        state.durable_names = state.names.clone();
        state.unsynced_names.clear();
        Ok(())
    }
}

#[derive(Debug)]
struct DiskFile {
    inode: usize,
    disk: ModelDisk,
}

impl DiskFile {
    fn change(&self, change: Change) {
        let inode = &mut self.disk.0.lock().inodes[self.inode];
        apply(&mut inode.content, &change);
        inode.unsynced.push(change);
    }
}

impl StoredFile for DiskFile {
    fn n_bytes(&self) -> io::Result<u64> {
        Ok(self.disk.0.lock().inodes[self.inode].content.len() as u64)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let state = self.disk.0.lock();
        let content = &state.inodes[self.inode].content;
        let rest = &content[content.len().min(offset as usize)..];
        let n_read = rest.len().min(bytes.len());
        bytes[..n_read].copy_from_slice(&rest[..n_read]);
        Ok(n_read)
    }

    fn write_at(&self, slices: &[&[u8]], offset: u64) -> io::Result<()> {
        let done = self.disk.operation();
        let mut bytes = slices.concat();
        if done.is_err() {
            let is_short = self.disk.0.lock().fault.is_some_and(|fault| fault.is_short);
            bytes.truncate(if is_short { bytes.len() / 2 } else { 0 });
        }
        let mut at = offset as usize;
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let n_bytes = (SECTOR - at % SECTOR).min(rest.len());
            self.change(Change::Sector(at, rest[..n_bytes].to_vec()));
            at += n_bytes;
            rest = &rest[n_bytes..];
        }
        done
    }

    fn set_len(&self, n_bytes: u64) -> io::Result<()> {
        self.disk.operation()?;
        self.change(Change::Length(n_bytes as usize));
        Ok(())
    }

    fn allocate(&self, n_bytes: u64) -> io::Result<()> {
        self.set_len(n_bytes)
    }

    fn sync(&self) -> io::Result<()> {
        // As on Linux, a failed sync loses the unsynced changes: they stay readable, but no later
        // sync makes them durable.
        let done = self.disk.operation();
        let Inode {
            durable, unsynced, ..
        } = &mut self.disk.0.lock().inodes[self.inode];
        let changes = std::mem::take(unsynced);
        if done.is_ok() {
            changes.iter().for_each(|change| apply(durable, change));
        }
        done
    }
}
