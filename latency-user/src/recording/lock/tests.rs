use super::*;
use crate::recording::Frame;

fn class(command: u32, functions: &[&str]) -> LockClass {
    classify(command, functions.iter().map(|&name| (name != "?").then_some(name)))
}

/// Check the class of stacks as they are seen in programs.
#[test]
fn stacks() {
    use LockClass::{Condvar, Join, Mutex, Park, Rwlock, Semaphore, Unknown};
    for (functions, expected) in [
        (&["__lll_lock_wait", "pthread_mutex_lock@@GLIBC_2.2.5", "sign"][..], Mutex),
        (&["?", "pthread_mutex_lock", "sign"], Mutex),
        (&["?", "pthread_cond_wait@@GLIBC_2.3.2", "pool_worker", "start"], Condvar),
        (&["__lll_lock_wait", "__pthread_mutex_cond_lock", "pthread_cond_wait"], Mutex),
        (&["?", "pthread_cond_clockwait", "std::condition_variable::wait"], Condvar),
        (&["?", "pthread_rwlock_wrlock", "CRYPTO_THREAD_write_lock"], Rwlock),
        (&["?", "sem_wait", "main"], Semaphore),
        (&["__futex_abstimed_wait_common", "__new_sem_wait_slow64.constprop.0"], Semaphore),
        (&["__futex_abstimed_wait_common", "__pthread_clockjoin_ex", "main"], Join),
        (&["?", "__pthread_clockjoin_ex", "pthread_join", "main"], Join),
        (
            &[
                "std::sys::pal::unix::futex::futex_wait",
                "std::sys::sync::mutex::futex::Mutex::lock_contended",
                "service::sign",
            ],
            Mutex,
        ),
        (
            &[
                "std::sys::pal::unix::futex::futex_wait",
                "std::sys::sync::thread_parking::futex::Parker::park",
                "std::thread::park",
            ],
            Park,
        ),
        (
            &[
                "<parking_lot_core::thread_parker::imp::ThreadParker as \
                  parking_lot_core::thread_parker::ThreadParkerT>::park",
                "tokio::runtime::park::Inner::park",
            ],
            Park,
        ),
        (&["std::sys::pal::unix::futex::futex_wait", "my_lock"], Park),
        (&["syscall", "my_futex_wait", "sem_wait_for_it"], Unknown),
        (&["?", "?"], Unknown),
        (&[], Unknown),
    ] {
        assert_eq!(class(futex::WAIT, functions), expected, "{functions:?}");
    }
    assert_eq!(class(futex::LOCK_PI, &["?"]), Mutex);
    assert_eq!(class(futex::LOCK_PI2, &[]), Mutex);
    assert_eq!(class(futex::WAIT_REQUEUE_PI, &["pthread_mutex_lock"]), Condvar);
    assert_eq!(class(futex::NONE, &["?"]), Unknown);
}

/// Check that a parking_lot mutex is no parked thread, although it parks.
#[test]
fn parking_lot() {
    let functions = [
        "parking_lot_core::thread_parker::imp::ThreadParker::park",
        "parking_lot_core::parking_lot::park",
        "parking_lot::raw_mutex::RawMutex::lock_slow",
        "service::sign",
    ];
    assert_eq!(class(futex::WAIT, &functions), LockClass::Mutex);
}

fn settled(stacks: &[(&str, u64)]) -> Lock {
    let recorded: Vec<Stack> = stacks
        .iter()
        .enumerate()
        .map(|(id, (function, _))| Stack {
            id: id as u64,
            frames: vec![Frame { function: Some((*function).into()), ..Frame::default() }.into()],
            ..Stack::default()
        })
        .collect();
    let shares = stacks.iter().enumerate().map(|(id, &(_, total_ns))| StackShare {
        stack_id: id as u64,
        waits: 1,
        total_ns,
    });
    let mut lock = Lock {
        stacks: shares.collect(),
        holders: vec![HolderShare { tid: 7, ..HolderShare::default() }],
        ..Lock::default()
    };
    lock.settle(|id| recorded.get(id as usize));
    lock
}

/// Check that a lock's class is that of most of its waits, that a mutex stays one, and that the
/// classes without an owner beside the futex word have no holder.
#[test]
fn settle() {
    let lock = settled(&[("pthread_cond_wait", 900), ("pthread_mutex_lock", 1)]);
    assert_eq!((lock.class, lock.holders.len()), (LockClass::Mutex, 1));
    let lock = settled(&[("pthread_cond_wait", 900), ("work", 1000)]);
    assert_eq!((lock.class, lock.holders.len()), (LockClass::Condvar, 0));
    let lock = settled(&[("pthread_rwlock_rdlock", 1)]);
    assert_eq!((lock.class, lock.holders.len()), (LockClass::Rwlock, 0));
    let lock = settled(&[("work", 1)]);
    assert_eq!((lock.class, lock.holders.len()), (LockClass::Unknown, 1));
    assert_eq!(settled(&[]).class, LockClass::Unknown);
}
