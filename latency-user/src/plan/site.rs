//! Where in a function a probe costs least.
//!
//! The kernel emulates `push`, `nop` and relative `call`, `jmp` and `jcc` under a breakpoint;
//! anything else it single-steps, which needs a second trap
//! (<https://elixir.bootlin.com/linux/v6.12/source/arch/x86/kernel/uprobes.c>, `branch_setup_xol_ops` and
//! `push_setup_xol_ops`). A return probe
//! works wherever the return address is still on top of the stack, so the instructions before the
//! first emulated one may be stepped over if that changes nothing the probe looks at.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory};
use iced_x86::{OpAccess, Register};
use serde::Serialize;

/// What a hit of a probe costs the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Price {
    /// The kernel emulates the instruction: one trap.
    Emulated,
    /// The kernel single-steps the instruction: two traps, and far more in a virtual machine.
    SingleStepped,
    /// The machine's instructions are not understood.
    Unknown,
}

impl std::fmt::Display for Price {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Emulated => "emulated",
            Self::SingleStepped => "single-stepped",
            Self::Unknown => "unknown",
        })
    }
}

/// A place for a probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Site {
    /// Bytes from the start of the function.
    pub offset_bytes: u64,
    /// What it costs.
    pub price: Price,
}

/// Bytes of code looked at where the function's size is not known.
pub const DEFAULT_CODE_BYTES: usize = 4096;

/// Finds the cheapest site of a function that entry and return probes can share. `code` is the
/// function, or its beginning; the probe reads the `arguments_read` (bit n: argument n).
#[cfg(target_arch = "x86_64")]
pub fn cheapest(code: &[u8], arguments_read: u8) -> Site {
    let first = Site { offset_bytes: 0, price: Price::SingleStepped };
    let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    let mut instructions = InstructionInfoFactory::new();
    let mut instruction = Instruction::default();
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        let start = instruction.ip() as usize;
        let end = instruction.next_ip() as usize;
        if instruction.is_invalid() {
            return first;
        }
        if code.get(start..end).is_some_and(is_emulated) {
            let offset_bytes = start as u64;
            // A jump back would hit the probe once a loop, and a jump past it would miss it.
            if offset_bytes > 0 && is_jumped_into(code, 1..=offset_bytes) {
                return first;
            }
            return Site { offset_bytes, price: Price::Emulated };
        }
        if !may_step_over(&mut instructions, &instruction, arguments_read) {
            return first;
        }
    }
    first
}

/// Without knowledge of the instructions the first byte is the only safe place.
#[cfg(not(target_arch = "x86_64"))]
pub fn cheapest(_code: &[u8], _arguments_read: u8) -> Site {
    Site { offset_bytes: 0, price: Price::Unknown }
}

/// Whether the kernel emulates an instruction, given its bytes. Stricter than the kernel with
/// prefixes that compilers do not emit.
fn is_emulated(instruction: &[u8]) -> bool {
    match *instruction {
        [0x50..=0x57] | [0x41, 0x50..=0x57] => true, // push
        [0x90] | [0x66, 0x90] => true,
        [0xe8 | 0xe9, _, _, _, _] | [0xeb | 0x70..=0x7f, _] => true,
        [0x0f, 0x80..=0x8f, _, _, _, _] => true,
        // `bnd` and the branch hints, which the kernel's emulation passes over.
        [0xf2 | 0x2e | 0x3e, ref rest @ ..] => {
            matches!(*rest, [0xe8 | 0xe9, _, _, _, _] | [0xeb | 0x70..=0x7f, _])
                || matches!(*rest, [0x0f, 0x80..=0x8f, _, _, _, _])
        }
        _ => false,
    }
}

fn may_step_over(
    instructions: &mut InstructionInfoFactory,
    instruction: &Instruction,
    arguments_read: u8,
) -> bool {
    // The System V ABI's order of arguments.
    const ARGUMENTS: [Register; 6] =
        [Register::RDI, Register::RSI, Register::RDX, Register::RCX, Register::R8, Register::R9];
    if instruction.flow_control() != FlowControl::Next {
        return false;
    }
    instructions.info(instruction).used_registers().iter().all(|used| {
        let is_written = matches!(
            used.access(),
            OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
        );
        let register = used.register().full_register();
        let is_read_by_probe = ARGUMENTS
            .iter()
            .position(|argument| *argument == register)
            .is_some_and(|index| arguments_read & (1 << index) != 0);
        !is_written || (register != Register::RSP && !is_read_by_probe)
    })
}

/// Whether any branch of the code leads into the range. Code that cannot be decoded could hold
/// any branch; what follows the function is decoded along where its size is not known.
fn is_jumped_into(code: &[u8], range: std::ops::RangeInclusive<u64>) -> bool {
    let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() {
            // An instruction cut off by the end of the code is no sign of confusion.
            return decoder.can_decode();
        }
        let is_branch = matches!(
            instruction.flow_control(),
            FlowControl::ConditionalBranch
                | FlowControl::UnconditionalBranch
                | FlowControl::Call
                | FlowControl::XbeginXabortXend
        );
        if is_branch && range.contains(&instruction.near_branch_target()) {
            return true;
        }
    }
    false
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(code: &[u8], arguments_read: u8, offset_bytes: u64, price: Price) {
        assert_eq!(cheapest(code, arguments_read), Site { offset_bytes, price });
    }

    /// Check functions whose first instruction is emulated.
    #[test]
    fn emulated_at_once() {
        check(&[0x41, 0x54, 0x49, 0x89, 0xd4], 0, 0, Price::Emulated); // push r12
        check(&[0x53, 0xc3], 0, 0, Price::Emulated); // push rbx
        check(&[0x90, 0xc3], 0, 0, Price::Emulated); // nop
        check(&[0x66, 0x90, 0xc3], 0, 0, Price::Emulated); // xchg ax, ax
        check(&[0xe9, 0x1b, 0xff, 0xff, 0xff], 0, 0, Price::Emulated); // jmp elsewhere
        check(&[0xeb, 0x10], 0, 0, Price::Emulated); // jmp short
        check(&[0xe8, 0, 0, 0, 0, 0xc3], 0, 0, Price::Emulated); // call
    }

    /// Check that `endbr64` is stepped over.
    #[test]
    fn endbr64() {
        check(&[0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0xc3], 0b111, 4, Price::Emulated);
        check(&[0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x83, 0xec, 8, 0x55], 0, 0, Price::SingleStepped);
    }

    /// Check RSA_verify's shape: mov; mov; test; je.
    #[test]
    fn moves_then_branch() {
        let code = [
            0x49, 0x8b, 0x41, 0x18, // mov rax, [r9+0x18]
            0x48, 0x8b, 0x40, 0x60, // mov rax, [rax+0x60]
            0x48, 0x85, 0xc0, // test rax, rax
            0x74, 0x03, // je +3
            0xff, 0xe0, // jmp rax
            0x90, 0xc3,
        ];
        check(&code, 1 << 4, 11, Price::Emulated);
    }

    /// Check EVP_SignFinal's shape, xor; xor; jmp, and that it is refused when an argument that
    /// the probe reads is overwritten.
    #[test]
    fn overwritten_arguments() {
        let code = [0x45, 0x31, 0xc9, 0x45, 0x31, 0xc0, 0xe9, 0, 1, 0, 0];
        check(&code, 1 << 2, 6, Price::Emulated);
        check(&code, 1 << 4, 0, Price::SingleStepped);
        check(&code, 1 << 5, 0, Price::SingleStepped);
        // mov dil, 1 writes a part of rdi.
        check(&[0x40, 0xb7, 1, 0x55], 1, 0, Price::SingleStepped);
        // rep movsb writes rdi, rsi and rcx without naming them.
        check(&[0xf3, 0xa4, 0x55], 1 << 3, 0, Price::SingleStepped);
    }

    /// Check that nothing is stepped over that moves the stack or leaves the straight line.
    #[test]
    fn dead_ends() {
        check(&[0x48, 0x83, 0xec, 0x08, 0x55], 0, 0, Price::SingleStepped); // sub rsp, 8
        check(&[0x6a, 0x00, 0x55], 0, 0, Price::SingleStepped); // push 0
        check(&[0x48, 0x8d, 0x64, 0x24, 0xf8, 0x55], 0, 0, Price::SingleStepped); // lea rsp
        check(&[0xc9, 0x55], 0, 0, Price::SingleStepped); // leave
        check(&[0xc3, 0x55], 0, 0, Price::SingleStepped); // ret
        check(&[0x0f, 0x05, 0x55], 0, 0, Price::SingleStepped); // syscall
        // RSA_private_encrypt's shape: mov rax, [rcx+0x18]; jmp [rax+0x18]
        check(&[0x48, 0x8b, 0x41, 0x18, 0xff, 0x60, 0x18, 0x55], 0, 0, Price::SingleStepped);
        check(&[0x0f, 0x1f, 0x00, 0xc3], 0, 0, Price::SingleStepped); // nop [rax]; ret
        check(&[0x41, 0x90, 0xc3], 0, 0, Price::SingleStepped); // xchg r8, rax
        check(&[0x66, 0xe9, 0, 0, 0, 0], 0, 0, Price::SingleStepped); // 16-bit jump
        check(&[0xe3, 0x00, 0x55], 0, 0, Price::SingleStepped); // jrcxz
        check(&[], 0, 0, Price::SingleStepped);
        check(&[0x06], 0, 0, Price::SingleStepped); // invalid
        check(&[0x48, 0x8b], 0, 0, Price::SingleStepped); // cut off
    }

    /// Check that reading the stack pointer is no obstacle.
    #[test]
    fn stack_reads() {
        check(&[0x48, 0x8b, 0x54, 0x24, 0x08, 0x55], 0, 5, Price::Emulated); // mov rdx, [rsp+8]
        check(&[0x48, 0x89, 0xe0, 0x55], 0, 3, Price::Emulated); // mov rax, rsp
    }

    /// Check that a loop back into the prologue forbids a later site, and one to the very start
    /// or past the site does not.
    #[test]
    fn loops() {
        let looping = |back: u8| [0x31, 0xc0, 0x31, 0xd2, 0x55, 0x75, back, 0xc3];
        check(&looping(0xfb), 0, 0, Price::SingleStepped); // to 2
        check(&looping(0xfd), 0, 0, Price::SingleStepped); // to 4, the site
        check(&looping(0xf9), 0, 4, Price::Emulated); // to 0
        check(&looping(0xfe), 0, 4, Price::Emulated); // to 5
        // Undecodable code after the site may hold such a loop.
        check(&[0x31, 0xc0, 0x55, 0x06, 0x90, 0x90], 0, 0, Price::SingleStepped);
    }

    proptest! {
        /// Check that any bytes give a site on an emulated instruction, or the first byte.
        #[test]
        fn any_bytes(code in proptest::collection::vec(any::<u8>(), 0..200), arguments_read in 0u8..64) {
            let site = cheapest(&code, arguments_read);
            match site.price {
                Price::Emulated => {
                    let rest = &code[site.offset_bytes as usize..];
                    prop_assert!((1..=7).any(|n| rest.get(..n).is_some_and(is_emulated)));
                }
                _ => prop_assert_eq!(site.offset_bytes, 0),
            }
        }

        /// Check that a site depends on nothing but what is before it, once the rest is harmless.
        #[test]
        fn harmless_lead(lead in proptest::collection::vec(prop_oneof![
            Just(&[0x31u8, 0xc0][..]), Just(&[0xf3, 0x0f, 0x1e, 0xfa][..]), Just(&[0x0f, 0x1f, 0x00][..]),
            Just(&[0x48, 0x89, 0xf8][..]),
        ], 0..10)) {
            let mut code = lead.concat();
            let start = code.len() as u64;
            code.extend([0x55, 0xc3]);
            prop_assert_eq!(cheapest(&code, 0x3f), Site { offset_bytes: start, price: Price::Emulated });
        }
    }
}
