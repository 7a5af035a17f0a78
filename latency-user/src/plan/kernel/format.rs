//! The `format` files of tracefs: where a tracepoint's fields lie in its record.

/// Where `sched_switch`'s fields lie, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SwitchFormat {
    /// The thread that leaves the CPU.
    pub prev_pid: u32,
    /// Its state.
    pub prev_state: u32,
    /// The thread that comes.
    pub next_pid: u32,
}

impl SwitchFormat {
    /// Reads `events/sched/sched_switch/format`; `None` if a field is missing or has another size
    /// than the programs read.
    pub fn parse(text: &str) -> Option<Self> {
        Some(Self {
            prev_pid: field(text, "prev_pid", 4)?,
            prev_state: field(text, "prev_state", 8)?,
            next_pid: field(text, "next_pid", 4)?,
        })
    }
}

/// The offset of the field `name`, if it has `size` bytes. A field's line reads
/// `field:pid_t prev_pid; offset:24; size:4; signed:1;`, with tabs.
fn field(text: &str, name: &str, size: u32) -> Option<u32> {
    let line = text.lines().find_map(|line| {
        let (declaration, rest) = line.trim().strip_prefix("field:")?.split_once(';')?;
        (declaration.split_whitespace().next_back()? == name).then_some(rest)
    })?;
    let value = |key: &str| {
        line.split(';').find_map(|part| part.trim().strip_prefix(key)?.parse::<u32>().ok())
    };
    (value("size:")? == size).then_some(())?;
    value("offset:")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file of Linux 6.18 on x86-64, with all offsets moved on by `shift`.
    fn switch_file(shift: u32) -> String {
        let fields = [
            ("char prev_comm[16]", 8, 16),
            ("pid_t prev_pid", 24, 4),
            ("int prev_prio", 28, 4),
            ("long prev_state", 32, 8),
            ("char next_comm[16]", 40, 16),
            ("pid_t next_pid", 56, 4),
            ("int next_prio", 60, 4),
        ];
        let mut text = "name: sched_switch\nID: 315\nformat:\n\
                        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n"
            .to_owned();
        for (declaration, offset, size) in fields {
            let offset = offset + shift;
            text += &format!("\tfield:{declaration};\toffset:{offset};\tsize:{size};\tsigned:1;\n");
        }
        text + "\nprint fmt: \"prev_comm=%s prev_pid=%d\", REC->prev_comm, REC->prev_pid\n"
    }

    /// Check the usual layout, and one that is shifted by 8 bytes.
    #[test]
    fn offsets_follow_the_file() {
        for shift in [0, 8] {
            let expected =
                SwitchFormat { prev_pid: 24 + shift, prev_state: 32 + shift, next_pid: 56 + shift };
            assert_eq!(SwitchFormat::parse(&switch_file(shift)), Some(expected));
        }
    }

    /// Check the layout of the real-time kernel 6.1, whose common fields are longer.
    #[test]
    fn real_time_layout() {
        let text = "format:\n\
            \tfield:unsigned char common_preempt_lazy_count;\toffset:8;\tsize:1;\tsigned:0;\n\
            \n\
            \tfield:char prev_comm[16];\toffset:12;\tsize:16;\tsigned:0;\n\
            \tfield:pid_t prev_pid;\toffset:28;\tsize:4;\tsigned:1;\n\
            \tfield:int prev_prio;\toffset:32;\tsize:4;\tsigned:1;\n\
            \tfield:long prev_state;\toffset:40;\tsize:8;\tsigned:1;\n\
            \tfield:char next_comm[16];\toffset:48;\tsize:16;\tsigned:0;\n\
            \tfield:pid_t next_pid;\toffset:64;\tsize:4;\tsigned:1;\n";
        let expected = SwitchFormat { prev_pid: 28, prev_state: 40, next_pid: 64 };
        assert_eq!(SwitchFormat::parse(text), Some(expected));
    }

    /// Check that a missing field, and one of another size, are no layout.
    #[test]
    fn unusable() {
        let text = switch_file(0);
        assert_eq!(SwitchFormat::parse(&text.replace("next_pid", "next_tid")), None);
        assert_eq!(SwitchFormat::parse(&text.replace("size:8", "size:4")), None);
        assert_eq!(SwitchFormat::parse(""), None);
    }

    proptest::proptest! {
        /// Check that any text is taken.
        #[test]
        fn total(text: String) {
            let _ = SwitchFormat::parse(&text);
        }
    }
}
