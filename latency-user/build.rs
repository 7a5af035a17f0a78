//! placeholder
fn main() {
    println!(
        "cargo:rustc-env=LATENCY_BPF_OBJECT={}/ebpf/latency.bpf.o",
        std::env::var("CARGO_MANIFEST_DIR").unwrap()
    );
}
