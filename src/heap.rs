//! Makes the allocator return freed memory to the system while the process uses much memory.
//!
//! mimalloc retains freed memory for 10 to 100 ms. If one thread allocates memory and another frees
//! it, the memory is retained until the first thread has allocated a hundred times more. So a
//! sender of large requests can fill a container with memory that is neither in use nor in any
//! budget. Returning all freed memory immediately would almost double the cost of spans with
//! prompts, so it is returned only while the process uses more than [`set_limit`] allows. A thread
//! can only return memory that it allocated, so each thread checks for itself.

use std::cell::Cell;
use std::fs;
use std::hint;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that a thread allocates between two checks of the process's memory. A check costs 12 µs,
/// and a request of this size takes at least a hundred times as long.
const LOOK_EVERY: usize = 1 << 20;

/// 256 TiB less 4 GiB: a process has no free address space of this size. mimalloc refuses larger
/// sizes before it searches for space. On 32-bit systems the size is 0, and no memory is returned
/// early.
const IMPOSSIBLE_SIZE: usize = 0xffff_0000_0000_u64 as usize;

/// The limit is global, because a process has one heap.
static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);

thread_local! {
    /// Bytes that this thread allocated since its last check.
    static TAKEN: Cell<usize> = const { Cell::new(0) };
}

/// Sets the memory use in bytes beyond which freed memory is returned. Before the first call
/// nothing is returned.
pub(crate) fn set_limit(n_bytes: usize) {
    LIMIT.store(n_bytes, Ordering::Relaxed);
}

/// Adds bytes that the calling thread allocates or has just allocated. Returns freed memory to the
/// system if a check is due and the process uses too much.
pub(crate) fn took(n_bytes: usize) {
    let taken = TAKEN.get().saturating_add(n_bytes);
    let is_time = taken >= LOOK_EVERY;
    TAKEN.set(if is_time { 0 } else { taken });
    if is_time {
        look();
    }
}

#[cold]
fn look() {
    let limit = LIMIT.load(Ordering::Relaxed);
    if limit < usize::MAX && held().is_some_and(|held| held > limit) {
        return_freed();
    }
}

/// Returns the bytes of anonymous memory of the process; `None` if the system does not report them.
fn held() -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kib: usize = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    Some(kib << 10)
}

/// Returns freed memory to the system by requesting an allocation that mimalloc must refuse. Before
/// mimalloc refuses, it returns all freed memory that the calling thread allocated, whichever
/// thread freed it. Calling mimalloc's function for this purpose would need `unsafe`. Other
/// allocators refuse immediately.
fn return_freed() {
    let mut nothing: Vec<u8> = Vec::new();
    let size = hint::black_box(IMPOSSIBLE_SIZE);
    // `black_box` prevents the compiler from removing the unused allocation.
    hint::black_box(nothing.try_reserve_exact(size).is_err());
    hint::black_box(&nothing);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn what_the_process_holds_grows_with_what_it_writes() {
        let before = held().unwrap();
        let written = hint::black_box(vec![1_u8; 64 << 20]);
        let after = held().unwrap();
        // Other tests free memory at the same time.
        assert!(
            after > before.saturating_sub(32 << 20) + (32 << 20),
            "{before} {after}"
        );
        drop(written);
    }

    #[test]
    fn what_cannot_be_allocated_is_refused_and_harms_nothing() {
        return_freed();
        assert_eq!(vec![1_u8; 10].len(), 10);
    }
}
