// Everything is read twice, in the order of the fingerprints: first to count what each bucket will have,
// since the buckets come first in the file, then to write the entries. Index files are in that order. The
// tables of packs are not: as many of their entries as the memory is for are picked out of them at a time,
// and all of the others are read over each time. So only so many of these packs are merged at a time: next
// time their pages are in a file.

#include "dedup_store/index_merge.h"

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "dedup_store/index_file.h"
#include "dedup_store/page_table.h"

namespace rekindle::store {

namespace {

// Each pack without an index file costs every look-up of an absent digest one probe.
constexpr size_t kMaxLoosePacks = 8;
// ... and each of its pages 6 to 12 bytes of memory while an image is written.
constexpr uint64_t kMaxLoosePages = uint64_t{4} << 20;
// An index file joins a merge when it is at most this many times as large as what is merged so far: each
// entry is then rewritten a logarithmic number of times.
constexpr uint64_t kMergeFactor = 3;
constexpr uint64_t kMaxMergedEntries = uint64_t{1} << 28;
constexpr int kEntriesPerBucketBits = 3;

// What is held at a time: the numbers of so many buckets, or so many entries of packs' tables, and the
// entries of so many buckets in the order of the fingerprints.
constexpr uint64_t kBucketsCounted = uint64_t{4} << 20;
constexpr uint64_t kLooseGathered = uint64_t{2} << 20;
constexpr uint32_t kSliceBits = 15;  // of the number of buckets of a slice

struct MergedPack {
  uint64_t id = 0;
  uint32_t pages = 0;
  std::vector<bool> dead;  // pages; empty: none
  uint32_t number = 0;     // in the new file
  bool Has(uint32_t page) const { return page < pages && (dead.empty() || !dead[page]); }
};

std::vector<bool> DeadPagesOf(const Pack& pack) {
  std::vector<bool> dead;
  for (uint32_t frame = 0; frame < pack.frames(); ++frame) {
    if (!pack.IsDeadFrame(frame)) continue;
    dead.resize(pack.pages());
    std::fill(dead.begin() + pack.frame(frame).first_page, dead.begin() + pack.FirstPageAfter(frame), true);
  }
  return dead;
}

class IndexMerge {
 public:
  IndexMerge(StoreCore* core, uint64_t most_loose) : core_(core), most_loose_(most_loose) {}

  // An index file, with the packs that it covers. Of one that can't be used the packs are taken as loose
  // ones. Aborted: another process has merged it meanwhile.
  absl::Status AddFile(const IndexRecord& record, std::vector<PackRecord> packs) {
    SourceFile file;
    auto scan = IndexScan::Open(core_, record);
    if (absl::IsNotFound(scan.status())) {
      RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core_->catalog().ReadNow());
      RK_ASSIGN_OR_RETURN(const std::vector<IndexRecord> now, txn.Indexes());
      if (absl::c_none_of(now, [&](const IndexRecord& index) { return index.id == record.id; }))
        return absl::AbortedError("another process merged the index");
    }
    if (!scan.ok() || (*scan)->entries() != record.entries || !CollectPacks(packs, file.packs)) {
      TellLeftOut(core_->index_path(record.id));
      for (const PackRecord& pack : packs) AddPack(pack);
      return absl::OkStatus();
    }
    file.scan = *std::move(scan);
    file.records = std::move(packs);
    files_.push_back(std::move(file));
    return absl::OkStatus();
  }
  // A pack that no index file covers. One that can't be read is left to its own table, or to fsck, and what
  // is more than may be loose to another merge.
  void AddPack(const PackRecord& record) {
    if (loose_pages_ > 0 && loose_pages_ + record.pages > most_loose_) return;
    const auto pack = core_->OpenPack(record.id);
    if (!pack.ok()) return;
    const auto table_is_whole = [&] {
      return ReadPageTable(core_, record.id, record.pages, [](uint32_t, absl::Span<const uint64_t>) {}).ok();
    };
    if (!table_is_whole()) {
      (void)PageTable::Load(core_, **pack);  // makes it anew
      if (!table_is_whole()) return;
    }
    tables_.push_back({{record.id, record.pages, DeadPagesOf(**pack)}, false});
    loose_pages_ += record.pages;
  }
  uint64_t loose_pages() const { return loose_pages_; }
  size_t loose_packs() const { return tables_.size(); }

  // What proves to be unreadable on the way is left out: of an index file the packs are asked themselves.
  absl::StatusOr<NewIndexFile> Write() {
    for (;;) {
      absl::StatusOr<NewIndexFile> written = WriteOnce();
      if (written.ok() || !DropUnreadable()) return written;
    }
  }
  // In the order of the file.
  const std::vector<uint64_t>& pack_ids() const { return pack_ids_; }

 private:
  struct SourceFile {
    std::unique_ptr<IndexScan> scan;
    std::vector<PackRecord> records;
    std::vector<MergedPack> packs;               // of these, as many as can be told of
    std::vector<const MergedPack*> by_position;  // in the file's own list; null: it does not cover it

    bool Keeps(const IndexEntry& entry) const {
      return entry.pack < by_position.size() && by_position[entry.pack] != nullptr &&
             by_position[entry.pack]->Has(entry.page);
    }
  };
  struct SourceTable {
    MergedPack pack;
    bool failed = false;
  };

  bool CollectPacks(const std::vector<PackRecord>& records, std::vector<MergedPack>& packs) const {
    auto txn = core_->catalog().Read();
    if (!txn.ok()) return false;
    for (const PackRecord& record : records) {
      MergedPack merged{record.id, record.pages, {}};
      const auto dead = txn->FindDead(record.id);
      if (!dead.ok() || *dead) {
        const auto pack = core_->OpenPack(record.id);
        if (!pack.ok()) continue;  // left to its own table, or to fsck
        merged.dead = DeadPagesOf(**pack);
      }
      packs.push_back(std::move(merged));
    }
    return true;
  }

  static void TellLeftOut(const std::string& index) {
    Log(LogLevel::kWarning, absl::StrCat("the index file ", index,
                                         " can't be read or is damaged: it is left out of the merged index, "
                                         "which is made of the page tables of its packs instead"));
  }

  bool DropUnreadable() {
    const auto failed = [this](const SourceTable& table) {
      if (table.failed) loose_pages_ -= table.pack.pages;
      return table.failed;
    };
    bool any = std::erase_if(tables_, failed) > 0;
    std::vector<PackRecord> of_files;
    std::erase_if(files_, [&](const SourceFile& file) {
      if (!file.scan->failed()) return false;
      TellLeftOut(file.scan->path());
      any = true;
      of_files.insert(of_files.end(), file.records.begin(), file.records.end());
      return true;
    });
    for (const PackRecord& record : of_files) AddPack(record);
    return any;
  }

  // Gives all packs their numbers, and finds how many buckets there are for what may be that many entries.
  void Number() {
    pack_ids_.clear();
    uint64_t most = 0;
    const auto number = [this](MergedPack& pack) {
      pack.number = static_cast<uint32_t>(pack_ids_.size());
      pack_ids_.push_back(pack.id);
    };
    for (SourceFile& file : files_) {
      std::map<uint64_t, const MergedPack*> by_id;
      for (MergedPack& pack : file.packs) {
        number(pack);
        by_id[pack.id] = &pack;
      }
      file.by_position.clear();
      for (uint64_t id : file.scan->pack_ids()) {
        const auto covered = by_id.find(id);
        file.by_position.push_back(covered == by_id.end() ? nullptr : covered->second);
      }
      most += file.scan->entries();
    }
    for (SourceTable& table : tables_) {
      number(table.pack);
      most += table.pack.pages;
    }
    bucket_bits_ = 0;
    while ((uint64_t{1} << (bucket_bits_ + kEntriesPerBucketBits)) < most) ++bucket_bits_;
  }

  uint64_t buckets() const { return uint64_t{1} << bucket_bits_; }
  uint64_t BucketOf(uint64_t fingerprint) const { return IndexBucketOf(fingerprint, bucket_bits_); }
  // The highest fingerprint of those that come before this bucket, which is not the first.
  uint64_t LastBefore(uint64_t bucket) const {
    return bucket >= buckets() ? std::numeric_limits<uint64_t>::max() : (bucket << (64 - bucket_bits_)) - 1;
  }
  uint64_t BucketsOfSlice() const { return std::min(buckets(), uint64_t{1} << kSliceBits); }
  uint64_t slices() const { return buckets() / BucketsOfSlice(); }

  absl::StatusOr<NewIndexFile> WriteOnce() {
    Number();
    RK_ASSIGN_OR_RETURN(std::unique_ptr<IndexFileWriter> writer,
                        IndexFileWriter::Create(core_, bucket_bits_, pack_ids_));
    RK_RETURN_IF_ERROR(BeginFiles());
    RK_ASSIGN_OR_RETURN(const uint64_t entries, WriteStarts(*writer));
    RK_RETURN_IF_ERROR(BeginFiles());
    RK_RETURN_IF_ERROR(WriteEntries(*writer));
    return writer->Finish(entries);
  }

  absl::Status BeginFiles() {
    for (SourceFile& file : files_) RK_RETURN_IF_ERROR(file.scan->Begin());
    return absl::OkStatus();
  }
  // Calls `take(entry)` for all that the packs' tables have.
  template <typename F>
  absl::Status ForEachLoose(const F& take) {
    for (SourceTable& table : tables_) {
      const MergedPack& pack = table.pack;
      absl::Status read = ReadPageTable(core_, pack.id, pack.pages,
                                        [&](uint32_t first, absl::Span<const uint64_t> fingerprints) {
                                          for (const uint64_t fingerprint : fingerprints) {
                                            const uint32_t page = first++;
                                            if (fingerprint != 0 && pack.Has(page))
                                              take(IndexEntry{fingerprint, pack.number, page});
                                          }
                                        });
      if (read.ok()) continue;
      table.failed = true;
      return read;
    }
    return absl::OkStatus();
  }
  template <typename F>
  absl::Status ForEachSorted(uint64_t up_to, const F& take) {
    for (SourceFile& file : files_) {
      RK_RETURN_IF_ERROR(file.scan->TakeUpTo(up_to, [&](const IndexEntry& entry) {
        if (file.Keeps(entry))
          take(IndexEntry{entry.fingerprint, file.by_position[entry.pack]->number, entry.page});
      }));
    }
    return absl::OkStatus();
  }

  // How many entries there are.
  absl::StatusOr<uint64_t> WriteStarts(IndexFileWriter& writer) {
    in_slice_.assign(slices(), 0);
    loose_in_slice_.assign(slices(), 0);
    uint64_t entries = 0;
    std::vector<uint32_t> counts;
    for (uint64_t begin = 0; begin < buckets(); begin += counts.size()) {
      counts.assign(std::min(buckets() - begin, kBucketsCounted), 0);
      const uint64_t end = begin + counts.size();
      RK_RETURN_IF_ERROR(ForEachSorted(
          LastBefore(end), [&](const IndexEntry& entry) { ++counts[BucketOf(entry.fingerprint) - begin]; }));
      RK_RETURN_IF_ERROR(ForEachLoose([&](const IndexEntry& entry) {
        const uint64_t bucket = BucketOf(entry.fingerprint);
        if (bucket < begin || bucket >= end) return;
        ++counts[bucket - begin];
        ++loose_in_slice_[bucket / BucketsOfSlice()];
      }));
      for (uint64_t bucket = begin; bucket < end; ++bucket) {
        const uint32_t count = std::exchange(counts[bucket - begin], static_cast<uint32_t>(entries));
        in_slice_[bucket / BucketsOfSlice()] += count;
        entries += count;
      }
      if (entries > std::numeric_limits<uint32_t>::max()) {
        return absl::ResourceExhaustedError(absl::StrCat(entries, " pages are too many for one index file"));
      }
      RK_RETURN_IF_ERROR(writer.AppendStarts(counts));
    }
    const auto end = static_cast<uint32_t>(entries);
    RK_RETURN_IF_ERROR(writer.AppendStarts({&end, 1}));
    return entries;
  }

  // Who forgets damaged pages writes their table anew.
  static absl::Status HasChanged() {
    return absl::AbortedError("what the index is made of has changed meanwhile");
  }

  absl::Status WriteEntries(IndexFileWriter& writer) {
    for (uint64_t slice = 0; slice < slices();) {
      const uint64_t first = slice;
      uint64_t gathered = 0;
      do {
        gathered += loose_in_slice_[slice++];
      } while (slice < slices() && gathered + loose_in_slice_[slice] <= kLooseGathered);
      RK_RETURN_IF_ERROR(GatherLoose(first, slice, gathered));
      absl::Span<const IndexEntry> loose = loose_;
      for (uint64_t s = first; s < slice; ++s) {
        RK_RETURN_IF_ERROR(WriteSlice(writer, s, loose.first(loose_in_slice_[s])));
        loose.remove_prefix(loose_in_slice_[s]);
      }
    }
    return absl::OkStatus();
  }

  // Those of some slices, slice by slice.
  absl::Status GatherLoose(uint64_t first, uint64_t end, uint64_t entries) {
    loose_.resize(entries);
    if (entries == 0) return absl::OkStatus();
    std::vector<uint64_t> next, ends;
    for (uint64_t slice = first, at = 0; slice < end; ++slice) {
      next.push_back(at);
      ends.push_back(at += loose_in_slice_[slice]);
    }
    bool fits = true;
    RK_RETURN_IF_ERROR(ForEachLoose([&](const IndexEntry& entry) {
      const uint64_t slice = BucketOf(entry.fingerprint) / BucketsOfSlice();
      if (slice < first || slice >= end) return;
      uint64_t& at = next[slice - first];
      if (at < ends[slice - first]) {
        loose_[at++] = entry;
      } else {
        fits = false;
      }
    }));
    return fits && next == ends ? absl::OkStatus() : HasChanged();
  }

  absl::Status WriteSlice(IndexFileWriter& writer, uint64_t slice, absl::Span<const IndexEntry> loose) {
    const uint64_t first_bucket = slice * BucketsOfSlice();
    slice_.assign(loose.begin(), loose.end());
    RK_RETURN_IF_ERROR(ForEachSorted(LastBefore(first_bucket + BucketsOfSlice()),
                                     [&](const IndexEntry& entry) { slice_.push_back(entry); }));
    if (slice_.size() != in_slice_[slice]) return HasChanged();
    // Each to its bucket; there are few in each of them.
    next_.assign(BucketsOfSlice() + 1, 0);
    for (const IndexEntry& entry : slice_) ++next_[BucketOf(entry.fingerprint) - first_bucket + 1];
    for (uint64_t bucket = 1; bucket < next_.size(); ++bucket) next_[bucket] += next_[bucket - 1];
    sorted_.resize(slice_.size());
    for (const IndexEntry& entry : slice_)
      sorted_[next_[BucketOf(entry.fingerprint) - first_bucket]++] = entry;
    auto begin = sorted_.begin();
    for (uint64_t bucket = 0; bucket < BucketsOfSlice(); ++bucket) {
      const auto end = sorted_.begin() + static_cast<ptrdiff_t>(next_[bucket]);
      std::sort(begin, end,
                [](const IndexEntry& a, const IndexEntry& b) { return a.fingerprint < b.fingerprint; });
      begin = end;
    }
    return writer.AppendEntries(sorted_);
  }

  StoreCore* const core_;
  const uint64_t most_loose_;
  uint64_t loose_pages_ = 0;  // of tables_
  std::vector<SourceFile> files_;
  std::vector<SourceTable> tables_;
  std::vector<uint64_t> pack_ids_;
  uint32_t bucket_bits_ = 0;
  std::vector<uint64_t> in_slice_, loose_in_slice_;  // entries of each slice
  std::vector<IndexEntry> loose_;
  std::vector<IndexEntry> slice_, sorted_;
  std::vector<uint64_t> next_;
};

bool WantsMerge(size_t loose_packs, uint64_t loose_pages, bool all) {
  return loose_packs > 0 && (all || loose_packs > kMaxLoosePacks || loose_pages > kMaxLoosePages);
}

// By how many the packs have become fewer that no index file covers. 0 when there is nothing to merge, or
// another process has done it; less than 0 where a damaged file covered more than can be taken at a time.
absl::StatusOr<int64_t> MergeOnce(StoreCore* core, bool all, uint64_t most_loose) {
  std::vector<PackRecord> packs;
  std::vector<IndexRecord> indexes;
  {
    RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core->catalog().Read());
    RK_ASSIGN_OR_RETURN(packs, txn.Packs());
    RK_ASSIGN_OR_RETURN(indexes, txn.Indexes());
  }
  std::vector<PackRecord> loose;
  uint64_t loose_pages = 0;
  for (const PackRecord& pack : packs) {
    if (pack.index_id != 0 || pack.pages == 0) continue;
    loose.push_back(pack);
    loose_pages += pack.pages;
  }
  if (!WantsMerge(loose.size(), loose_pages, all)) return 0;
  // The largest first: then what is more than can be taken is put off by as much that is not.
  std::sort(loose.begin(), loose.end(), [](auto& a, auto& b) { return a.pages > b.pages; });
  IndexMerge merge(core, most_loose);
  for (const PackRecord& pack : loose) merge.AddPack(pack);
  // Those that can't be used stay as they are: for their sake nothing is written anew, commit after commit.
  if (!WantsMerge(merge.loose_packs(), merge.loose_pages(), all)) return 0;
  uint64_t total = merge.loose_pages();
  std::sort(indexes.begin(), indexes.end(), [](auto& a, auto& b) { return a.entries < b.entries; });
  std::set<uint64_t> merged_indexes;
  for (const IndexRecord& index : indexes) {
    if (index.entries > total * kMergeFactor || total + index.entries > kMaxMergedEntries) break;
    merged_indexes.insert(index.id);
    total += index.entries;
    std::vector<PackRecord> covered;
    for (const PackRecord& pack : packs) {
      if (pack.index_id == index.id) covered.push_back(pack);
    }
    const absl::Status added = merge.AddFile(index, std::move(covered));
    if (absl::IsAborted(added)) return 0;
    RK_RETURN_IF_ERROR(added);
  }

  absl::StatusOr<NewIndexFile> written = merge.Write();
  // The next commit tries again.
  if (absl::IsAborted(written.status())) return 0;
  RK_RETURN_IF_ERROR(written.status());
  const IndexRecord& record = written->record;
  const std::set<uint64_t> in_file(merge.pack_ids().begin(), merge.pack_ids().end());

  int64_t fewer = 0;
  RK_RETURN_IF_ERROR(core->io()->BeforeCatalogCommit("merge of indexes"));
  absl::Status status = core->catalog().Update([&](Catalog::Txn& txn) -> absl::Status {
    RK_ASSIGN_OR_RETURN(std::vector<IndexRecord> now, txn.Indexes());
    size_t still = 0;
    for (const IndexRecord& index : now) still += merged_indexes.count(index.id);
    if (still != merged_indexes.size()) return absl::AbortedError("another process merged the index");
    for (uint64_t id : merged_indexes) RK_RETURN_IF_ERROR(txn.DeleteIndex(id));
    RK_RETURN_IF_ERROR(txn.PutIndex(record));
    RK_ASSIGN_OR_RETURN(std::vector<PackRecord> all_packs, txn.Packs());
    fewer = 0;
    size_t covered = 0;
    // One that is in another file by now, or in none since pages of it were forgotten, stays so.
    std::map<uint64_t, uint64_t> before;
    for (const PackRecord& pack : packs) before[pack.id] = pack.index_id;
    for (PackRecord& pack : all_packs) {
      if (in_file.count(pack.id) && pack.index_id == before[pack.id]) {
        fewer += pack.index_id == 0 ? 1 : 0;
        ++covered;
        pack.index_id = record.id;
      } else if (merged_indexes.count(pack.index_id)) {
        --fewer;
        pack.index_id = 0;
      } else {
        continue;
      }
      RK_RETURN_IF_ERROR(txn.PutPack(pack));
    }
    if (covered == 0) return absl::AbortedError("other processes have put all of the packs into indexes");
    return absl::OkStatus();
  });
  if (!status.ok()) {
    RK_RETURN_IF_ERROR(core->io()->Unlink(core->index_path(record.id)));
    if (absl::IsAborted(status)) return 0;
    return status;
  }
  for (uint64_t id : merged_indexes) RK_RETURN_IF_ERROR(core->io()->Unlink(core->index_path(id)));
  return fewer;
}

}  // namespace

absl::Status MergeIndexes(StoreCore* core, bool all, uint64_t most_loose) {
  for (;;) {
    RK_ASSIGN_OR_RETURN(const int64_t fewer, MergeOnce(core, all, most_loose));
    if (fewer <= 0) return absl::OkStatus();
  }
}

}  // namespace rekindle::store
