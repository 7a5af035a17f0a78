//! Four threads that take one lock.

use std::hint::black_box;
use std::sync::Mutex;
use std::time::Duration;

static KEYS: Mutex<u64> = Mutex::new(0);

#[inline(never)]
fn sign(request: u64) -> u64 {
    let mut keys = KEYS.lock().unwrap();
    std::thread::sleep(Duration::from_micros(300));
    *keys += request;
    *keys
}

#[inline(never)]
fn serve(requests: u64) -> u64 {
    (0..requests).map(|request| black_box(sign(black_box(request)))).sum()
}

fn main() {
    let mut line = String::new();
    println!("ready");
    std::io::stdin().read_line(&mut line).unwrap();
    let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(|| serve(400))).collect();
    for thread in threads {
        thread.join().unwrap();
    }
    println!("done");
    std::io::stdin().read_line(&mut line).unwrap();
}
