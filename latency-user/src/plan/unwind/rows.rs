//! Rows from a section of call frame information: sorted, without overlaps, gaps made explicit,
//! and neighbours with the same rule merged.

use gimli::{
    BaseAddresses, CieOrFde, CommonInformationEntry, EndianSlice, FrameDescriptionEntry,
    LittleEndian, ReaderOffset, RegisterRule, UnwindContext, UnwindContextStorage, UnwindSection,
    UnwindTableRow,
};
use latency_common::unwind::{Row, Rule, SavedRbp};

use super::rule;

/// Reads a section's bytes.
pub type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// What a section gave.
pub struct Compiled {
    /// Packed rows, ascending by program counter.
    pub rows: Vec<u64>,
    /// Entries that were broken.
    pub broken_entries: u64,
}

/// Room for the rules of one row. gimli's own has room for 192 rules, which makes each
/// `DW_CFA_remember_state` copy 5 kB; on x86-64, 17 registers have rules.
pub struct Store;

impl<T: ReaderOffset> UnwindContextStorage<T> for Store {
    type Rules = [(gimli::Register, RegisterRule<T>); 32];
    type Stack = Vec<UnwindTableRow<T, Self>>;
}

/// One entry's range and its rows.
struct Entry {
    start: u64,
    end: u64,
    first: usize,
    last: usize,
}

/// Compiles a section. Program counters are counted from `base`; entries outside `code`, the
/// address ranges of the file's executable segments, are left out: linkers leave such entries
/// behind for functions they dropped. `None` if there are more than `most` rows.
pub fn compile<'a, S>(
    section: &S,
    bases: &BaseAddresses,
    base: u64,
    code: &[(u64, u64)],
    most: usize,
) -> Option<Compiled>
where
    S: UnwindSection<Slice<'a>>,
{
    let mut context: UnwindContext<usize, Store> = UnwindContext::new_in();
    let mut broken_entries = 0;
    let mut entries: Vec<Entry> = Vec::new();
    // Packed, since there can be millions.
    let mut pieces: Vec<u64> = Vec::new();
    let mut last_cie: Option<(S::Offset, CommonInformationEntry<Slice<'a>>)> = None;
    let mut iterator = section.entries(bases);
    loop {
        let partial = match iterator.next() {
            Ok(Some(CieOrFde::Fde(partial))) => partial,
            Ok(Some(CieOrFde::Cie(_))) => continue,
            Ok(None) => break,
            Err(_) => {
                // The entries are a chain of lengths: nothing after a broken one can be found.
                broken_entries += 1;
                break;
            }
        };
        let parsed = partial.parse(|section, bases, offset| {
            if let Some((known, cie)) = &last_cie
                && *known == offset
            {
                return Ok(cie.clone());
            }
            let cie = section.cie_from_offset(bases, offset)?;
            last_cie = Some((offset, cie.clone()));
            Ok(cie)
        });
        let Ok(fde) = parsed else {
            broken_entries += 1;
            continue;
        };
        let (start, end) = (fde.initial_address(), fde.end_address());
        let inside = code.iter().any(|(low, high)| start >= *low && end <= *high);
        let near = end.checked_sub(base).is_some_and(|offset| offset <= u64::from(u32::MAX));
        if start >= end || !inside || !near {
            continue;
        }
        let first = pieces.len();
        if first > most {
            return None;
        }
        if !entry_rows(section, bases, &fde, base, &mut context, &mut pieces) {
            broken_entries += 1;
            pieces.truncate(first);
            pieces.extend(packed(start, base, Rule::Unsupported, SavedRbp::Unchanged));
        }
        entries.push(Entry { start, end, first, last: pieces.len() });
    }
    entries.sort_by_key(|entry| entry.start);

    let mut rows = Builder { rows: Vec::with_capacity(pieces.len()), base };
    let mut covered = 0;
    for entry in &entries {
        if entry.start < covered {
            continue;
        }
        if covered != 0 && entry.start > covered {
            rows.push(covered, Rule::None, SavedRbp::Unchanged);
        }
        for bits in &pieces[entry.first..entry.last] {
            let pc = base + u64::from(*bits as u32);
            if pc >= entry.start && pc < entry.end {
                rows.push_packed(*bits);
            }
        }
        covered = entry.end;
    }
    if covered != 0 {
        rows.push(covered, Rule::None, SavedRbp::Unchanged);
    }
    Some(Compiled { rows: rows.rows, broken_entries })
}

/// Appends an entry's rows; false if it is broken.
fn entry_rows<'a, S>(
    section: &S,
    bases: &BaseAddresses,
    fde: &FrameDescriptionEntry<Slice<'a>>,
    base: u64,
    context: &mut UnwindContext<usize, Store>,
    pieces: &mut Vec<u64>,
) -> bool
where
    S: UnwindSection<Slice<'a>>,
{
    let encoding = fde.cie().encoding();
    let is_signal = fde.is_signal_trampoline();
    let return_address = fde.cie().return_address_register();
    let Ok(mut table) = fde.rows(section, bases, context) else { return false };
    loop {
        match table.next_row() {
            Ok(Some(row)) => {
                let (rule, saved_rbp) = rule::of(section, row, encoding, return_address, is_signal);
                pieces.extend(packed(row.start_address(), base, rule, saved_rbp));
            }
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

/// A packed row; what has no place in one is said to be unsupported. `None` outside the 4 GiB from
/// `base`.
fn packed(pc: u64, base: u64, rule: Rule, saved_rbp: SavedRbp) -> Option<u64> {
    let pc = u32::try_from(pc.checked_sub(base)?).ok()?;
    let unsupported = Row { pc, rule: Rule::Unsupported, saved_rbp: SavedRbp::Unchanged };
    Row { pc, rule, saved_rbp }.pack().or_else(|| unsupported.pack())
}

struct Builder {
    rows: Vec<u64>,
    base: u64,
}

impl Builder {
    fn push(&mut self, pc: u64, rule: Rule, saved_rbp: SavedRbp) {
        if let Some(bits) = packed(pc, self.base, rule, saved_rbp) {
            self.push_packed(bits);
        }
    }

    fn push_packed(&mut self, bits: u64) {
        while let Some(last) = self.rows.last() {
            let (last_pc, last_rule) = (*last as u32, *last >> 32);
            if last_pc == bits as u32 {
                // A later row for the same place replaces the earlier one.
                self.rows.pop();
                continue;
            }
            if last_pc > bits as u32 || last_rule == bits >> 32 {
                return;
            }
            break;
        }
        self.rows.push(bits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(pushes: &[(u64, Rule)]) -> Vec<(u32, Rule)> {
        let mut builder = Builder { rows: Vec::new(), base: 0x1000 };
        for (pc, rule) in pushes {
            builder.push(*pc, *rule, SavedRbp::Unchanged);
        }
        let unpacked = builder.rows.iter().map(|bits| Row::unpack(*bits));
        unpacked.map(|row| (row.pc, row.rule)).collect()
    }

    /// Check that equal neighbours merge, that the last row for a place wins, that rows never
    /// descend, and that what does not fit is said to be unsupported.
    #[test]
    fn builder() {
        let pushes = [
            (0x1000, Rule::Rsp(8)),
            (0x1001, Rule::Rsp(8)),
            (0x1002, Rule::Rsp(16)),
            (0x1004, Rule::Rsp(24)),
            (0x1004, Rule::Rsp(16)),
            (0x1001, Rule::Rsp(32)),
            (0x0fff, Rule::Rsp(32)),
            (0x1008, Rule::Rsp(12)),
        ];
        assert_eq!(built(&pushes), [(0, Rule::Rsp(8)), (2, Rule::Rsp(16)), (8, Rule::Unsupported)]);
    }
}
