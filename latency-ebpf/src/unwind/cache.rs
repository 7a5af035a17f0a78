//! The rows found last, by address: a service's stacks come from the same few call sites, and one
//! look here touches one cache line where the two searches touch six.

/// Rows that are kept.
const ENTRIES: usize = 512;

/// Addresses of programs are below this.
const LOWEST_KERNEL_ADDRESS: u64 = 1 << 47;

/// Rows by address.
#[repr(C)]
pub struct RowCache {
    entries: [Entry; ENTRIES],
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Entry {
    /// The address, and in its upper 16 bits the generation of the table; 0: none.
    tag: u64,
    row: u64,
}

/// Where an address's row is kept.
#[derive(Clone, Copy)]
pub struct Place {
    tag: u64,
    index: usize,
}

impl Place {
    /// The place for an address that is looked up in a table of this generation; `None` for one
    /// that no program has.
    #[inline(always)]
    pub fn of(generation: u32, pc: u64) -> Option<Self> {
        if pc >= LOWEST_KERNEL_ADDRESS {
            return None;
        }
        let mixed = pc.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let index = (mixed >> (64 - ENTRIES.ilog2())) as usize;
        Some(Self { tag: u64::from(generation) << 48 | pc, index })
    }
}

impl RowCache {
    /// The row kept there, if it is the place's.
    #[inline(always)]
    pub fn get(&self, place: Place) -> Option<u64> {
        let entry = &self.entries[place.index & (ENTRIES - 1)];
        (entry.tag == place.tag).then_some(entry.row)
    }

    /// Keeps a row, in place of another.
    #[inline(always)]
    pub fn set(&mut self, place: Place, row: u64) {
        self.entries[place.index & (ENTRIES - 1)] = Entry { tag: place.tag, row };
    }
}

const _: () = assert!(ENTRIES.is_power_of_two());
