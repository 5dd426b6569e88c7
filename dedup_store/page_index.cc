#include "dedup_store/page_index.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "absl/base/call_once.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "dedup_store/direct_buffer.h"
#include "dedup_store/locked_file.h"
#include "dedup_store/page_table.h"

namespace rekindle::store {

namespace {

// Each pack without an index file costs every look-up of an absent digest one probe.
constexpr size_t kMaxLoosePacks = 8;
// An index file joins a merge when it is at most this many times as large as what is merged so far: each
// entry is then rewritten a logarithmic number of times.
constexpr uint64_t kMergeFactor = 3;
constexpr uint64_t kMaxMergedEntries = uint64_t{1} << 28;
constexpr int kEntriesPerBucketBits = 3;

class IndexFile {
 public:
  static absl::StatusOr<std::unique_ptr<IndexFile>> Open(StoreCore* core, const IndexRecord& record) {
    auto index = std::unique_ptr<IndexFile>(new IndexFile);
    RK_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file,
                        core->io()->Open(core->index_path(record.id), false));
    RK_ASSIGN_OR_RETURN(uint64_t size, file->Size());
    RK_ASSIGN_OR_RETURN(index->mapping_, file->Map(0, size));
    absl::Span<const std::byte> bytes = index->mapping_->bytes();
    auto damaged = [&] {
      return absl::DataLossError(absl::StrCat("the index file ", file->path(), " is damaged"));
    };
    if (size < sizeof(IndexHeader)) return damaged();
    memcpy(&index->header_, bytes.data(), sizeof(IndexHeader));
    if (index->lost()) return damaged();
    const IndexHeader& h = index->header_;
    if (memcmp(h.magic, kIndexMagic, sizeof h.magic) != 0 ||
        h.checksum != Checksum(&h, offsetof(IndexHeader, checksum)) || h.index_id != record.id ||
        h.version != kFormatVersion || h.bucket_bits > 32 || h.packs > size / 8 || h.entries > size / 16 ||
        h.buckets_at != sizeof h + h.packs * 8 ||
        h.entries_at != (h.buckets_at + ((uint64_t{1} << h.bucket_bits) + 1) * 4 + 7) / 8 * 8 ||
        h.entries_at + h.entries * sizeof(IndexEntry) > size) {
      return damaged();
    }
    index->pack_ids_ = {reinterpret_cast<const uint64_t*>(bytes.data() + sizeof h), h.packs};
    index->buckets_ = {reinterpret_cast<const uint32_t*>(bytes.data() + h.buckets_at),
                       (uint64_t{1} << h.bucket_bits) + 1};
    index->entries_ = {reinterpret_cast<const IndexEntry*>(bytes.data() + h.entries_at), h.entries};
    return index;
  }

  // Reads all of it.
  bool IsWhole() const {
    const absl::Span<const std::byte> body = bytes().subspan(sizeof(IndexHeader));
    return Checksum(body.data(), body.size()) == header_.body_checksum && !lost();
  }
  // A part of the file can't be read: none of it is to be used.
  bool lost() const { return mapping_->lost(); }
  const IndexHeader& header() const { return header_; }
  absl::Span<const std::byte> bytes() const { return mapping_->bytes(); }
  absl::Span<const uint64_t> pack_ids() const { return pack_ids_; }
  absl::Span<const IndexEntry> entries() const { return entries_; }

  void PrefetchBucket(uint64_t fingerprint) const { __builtin_prefetch(&buckets_[BucketOf(fingerprint)]); }
  // After that.
  void PrefetchEntry(uint64_t fingerprint) const {
    const uint64_t at = buckets_[BucketOf(fingerprint)];
    if (at < entries_.size()) __builtin_prefetch(&entries_[at]);
  }

  // Calls `found(entry)` until it returns true.
  template <typename F>
  bool Find(uint64_t fingerprint, F found) const {
    const uint64_t bucket = BucketOf(fingerprint);
    uint64_t end = std::min<uint64_t>(buckets_[bucket + 1], entries_.size());
    for (uint64_t i = buckets_[bucket]; i < end && entries_[i].fingerprint <= fingerprint; ++i) {
      if (entries_[i].fingerprint == fingerprint && entries_[i].pack < pack_ids_.size() && found(entries_[i]))
        return true;
    }
    return false;
  }

 private:
  IndexFile() = default;
  uint64_t BucketOf(uint64_t fingerprint) const {
    return header_.bucket_bits == 0 ? 0 : fingerprint >> (64 - header_.bucket_bits);
  }

  std::unique_ptr<FileMapping> mapping_;
  IndexHeader header_{};
  absl::Span<const uint64_t> pack_ids_;
  absl::Span<const uint32_t> buckets_;
  absl::Span<const IndexEntry> entries_;
};

// A pack that is opened when the first hit points to it.
struct LazyPack {
  bool covered =
      false;  // by this index file: else it is asked elsewhere, and what is in the file is outdated
  absl::once_flag once;
  std::shared_ptr<const Pack> pack;  // null: can't be opened
};

// A pack that no index file covers: its page table, hashed at the first look-up.
class LoosePack {
 public:
  LoosePack(StoreCore* core, std::shared_ptr<const Pack> pack) : core_(core), pack_(std::move(pack)) {}
  const std::shared_ptr<const Pack>& pack() const { return pack_; }

  void PrefetchSlot(uint64_t fingerprint) const {
    absl::call_once(once_, [this] { Build(); });
    __builtin_prefetch(&slots_[fingerprint & (slots_.size() - 1)]);
  }
  // After that.
  void PrefetchFingerprint(uint64_t fingerprint) const {
    const uint32_t slot = slots_[fingerprint & (slots_.size() - 1)];
    if (slot != 0) __builtin_prefetch(&table_.fingerprints()[slot - 1]);
  }

  template <typename F>
  bool Find(uint64_t fingerprint, F found) const {
    absl::call_once(once_, [this] { Build(); });
    const uint64_t mask = slots_.size() - 1;
    const absl::Span<const uint64_t> fingerprints = table_.fingerprints();
    for (uint64_t at = fingerprint & mask; slots_[at] != 0; at = (at + 1) & mask) {
      if (fingerprints[slots_[at] - 1] == fingerprint && found(slots_[at] - 1)) return true;
    }
    return false;
  }

 private:
  void Build() const {
    table_ = PageTable::Load(core_, *pack_);
    const absl::Span<const uint64_t> fingerprints = table_.fingerprints();
    size_t slots = 2;
    while (slots < fingerprints.size() * 3 / 2) slots *= 2;
    slots_.assign(slots, 0);
    for (uint32_t page = 0; page < fingerprints.size(); ++page) {
      if (fingerprints[page] == 0) continue;  // not known
      uint64_t at = fingerprints[page] & (slots - 1);
      while (slots_[at] != 0) at = (at + 1) & (slots - 1);
      slots_[at] = page + 1;
    }
  }

  StoreCore* core_;
  std::shared_ptr<const Pack> pack_;
  mutable absl::once_flag once_;
  mutable PageTable table_;
  mutable std::vector<uint32_t> slots_;
};

class LoadedIndex : public PageIndex {
 public:
  explicit LoadedIndex(StoreCore* core) : core_(core) {}
  ~LoadedIndex() override {
    for (const File& file : files_) {
      if (!file.index->lost()) continue;
      Log(LogLevel::kWarning,
          absl::StrCat("the index file ", core_->index_path(file.index->header().index_id),
                       " could not be read and was left out: some equal pages are stored "
                       "again; `rekindle fsck --repair` makes it anew"));
    }
  }

  absl::Status Load() {
    std::vector<IndexRecord> records;
    std::vector<PackRecord> packs;
    {
      RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core_->catalog().Read());
      RK_ASSIGN_OR_RETURN(records, txn.Indexes());
      RK_ASSIGN_OR_RETURN(packs, txn.Packs());
    }
    std::map<uint64_t, uint64_t> covered_by;  // pack -> index
    for (const PackRecord& record : packs) covered_by[record.id] = record.index_id;
    std::set<uint64_t> usable = {};
    for (const IndexRecord& record : records) {
      auto file = IndexFile::Open(core_, record);
      if (!file.ok()) {
        // Merged away a moment ago, or damaged: its packs are asked one by one.
        if (!absl::IsNotFound(file.status())) Log(LogLevel::kWarning, file.status().message());
        continue;
      }
      usable.insert(record.id);
      files_.push_back({*std::move(file), {}});
      const absl::Span<const uint64_t> ids = files_.back().index->pack_ids();
      files_.back().packs = std::vector<LazyPack>(ids.size());
      for (size_t i = 0; i < ids.size(); ++i) {
        auto covered = covered_by.find(ids[i]);
        files_.back().packs[i].covered = covered != covered_by.end() && covered->second == record.id;
      }
    }
    for (const PackRecord& record : packs) {
      if (record.pages == 0 || usable.count(record.index_id)) continue;
      auto pack = core_->OpenPack(record.id);
      if (pack.ok()) loose_.push_back(std::make_unique<LoosePack>(core_, *std::move(pack)));
    }
    return absl::OkStatus();
  }

  std::optional<Found> Find(uint64_t fingerprint,
                            absl::FunctionRef<bool(const Pack&, uint32_t)> equal) const override {
    std::optional<Found> result;
    auto matches = [&](const std::shared_ptr<const Pack>& pack, uint32_t page) {
      if (page >= pack->pages() || pack->IsDeadFrame(pack->FrameOfPage(page)) ||
          core_->damaged_frames().HasPage(*pack, page) || !equal(*pack, page)) {
        return false;
      }
      result = Found{pack, page};
      return true;
    };
    for (const auto& loose : loose_) {
      if (loose->Find(fingerprint, [&](uint32_t page) { return matches(loose->pack(), page); }))
        return result;
    }
    for (const File& file : files_) {
      if (file.index->lost()) continue;
      bool hit = file.index->Find(fingerprint, [&](const IndexEntry& entry) {
        LazyPack& lazy = file.packs[entry.pack];
        if (!lazy.covered) return false;
        absl::call_once(lazy.once, [&] {
          auto pack = core_->OpenPack(file.index->pack_ids()[entry.pack]);
          if (pack.ok()) lazy.pack = *std::move(pack);
        });
        return lazy.pack != nullptr && matches(lazy.pack, entry.page);
      });
      if (hit) return result;
    }
    return std::nullopt;
  }

  void Prefetch(absl::Span<const uint64_t> fingerprints) const override {
    for (uint64_t fingerprint : fingerprints) {
      for (const auto& loose : loose_) loose->PrefetchSlot(fingerprint);
      for (const File& file : files_) file.index->PrefetchBucket(fingerprint);
    }
    for (uint64_t fingerprint : fingerprints) {
      for (const auto& loose : loose_) loose->PrefetchFingerprint(fingerprint);
      for (const File& file : files_) file.index->PrefetchEntry(fingerprint);
    }
  }

  size_t Count(uint64_t fingerprint) const override {
    size_t count = 0;
    for (const auto& loose : loose_) loose->Find(fingerprint, [&](uint32_t) { return ++count, false; });
    for (const File& file : files_)
      file.index->Find(fingerprint, [&](const IndexEntry&) { return ++count, false; });
    return count;
  }

 private:
  struct File {
    std::unique_ptr<IndexFile> index;
    mutable std::vector<LazyPack> packs;
  };
  StoreCore* core_;
  std::vector<File> files_;
  std::vector<std::unique_ptr<LoosePack>> loose_;
};

absl::Status CollectPack(StoreCore* core, uint64_t id, uint32_t number, std::vector<IndexEntry>& entries) {
  RK_ASSIGN_OR_RETURN(std::shared_ptr<const Pack> pack, core->OpenPack(id));
  const PageTable table = PageTable::Load(core, *pack);
  for (uint32_t frame = 0; frame < pack->frames(); ++frame) {
    if (pack->IsDeadFrame(frame)) continue;
    for (uint32_t page = pack->frame(frame).first_page; page < pack->FirstPageAfter(frame); ++page) {
      if (table.fingerprints()[page] != 0) entries.push_back({table.fingerprints()[page], number, page});
    }
  }
  return absl::OkStatus();
}

bool IsBefore(const IndexEntry& a, const IndexEntry& b) { return a.fingerprint < b.fingerprint; }

// What an index file has of `packs`, all of which it covers, in its order. False: it can't be used, and
// nothing was added.
bool CollectIndexFile(StoreCore* core, const IndexRecord& record, const std::vector<PackRecord>& packs,
                      std::vector<uint64_t>& pack_ids, std::vector<IndexEntry>& entries) {
  auto index = IndexFile::Open(core, record);
  if (!index.ok() || !(*index)->IsWhole()) return false;
  auto txn = core->catalog().Read();
  if (!txn.ok()) return false;
  struct Source {
    uint32_t pages = 0, number = 0;
    std::shared_ptr<const Pack> with_dead;  // null: all of its frames live
  };
  std::map<uint64_t, Source> sources;
  const size_t packs_before = pack_ids.size(), entries_before = entries.size();
  for (const PackRecord& pack : packs) {
    auto dead = txn->FindDead(pack.id);
    Source source{pack.pages, static_cast<uint32_t>(pack_ids.size()), nullptr};
    if (!dead.ok() || *dead) {
      auto opened = core->OpenPack(pack.id);
      if (!opened.ok()) continue;  // left to its own table, or to fsck
      source.with_dead = *std::move(opened);
    }
    pack_ids.push_back(pack.id);
    sources.emplace(pack.id, std::move(source));
  }
  const absl::Span<const uint64_t> ids = (*index)->pack_ids();
  std::vector<const Source*> source_of(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    auto source = sources.find(ids[i]);
    if (source != sources.end()) source_of[i] = &source->second;
  }
  for (const IndexEntry& entry : (*index)->entries()) {
    const Source* source = entry.pack < source_of.size() ? source_of[entry.pack] : nullptr;
    if (source == nullptr || entry.page >= source->pages) continue;
    const Pack* pack = source->with_dead.get();
    if (pack != nullptr && pack->IsDeadFrame(pack->FrameOfPage(entry.page))) continue;
    entries.push_back({entry.fingerprint, source->number, entry.page});
  }
  if (!(*index)->lost()) return true;
  pack_ids.resize(packs_before);
  entries.resize(entries_before);
  return false;
}

// The file stays locked until the result goes, so that gc does not take it for a dead writer's before it is
// in the catalog.
struct NewIndexFile {
  IndexRecord record;
  std::unique_ptr<BlockFile> file;
};

absl::StatusOr<NewIndexFile> WriteIndexFile(StoreCore* core, const std::vector<uint64_t>& packs,
                                            const std::vector<IndexEntry>& entries) {
  IndexHeader header{};
  memcpy(header.magic, kIndexMagic, sizeof header.magic);
  header.version = kFormatVersion;
  while ((uint64_t{1} << (header.bucket_bits + kEntriesPerBucketBits)) < entries.size()) ++header.bucket_bits;
  header.index_id = NewFileId();
  header.entries = entries.size();
  header.packs = packs.size();
  header.buckets_at = sizeof header + packs.size() * 8;
  uint64_t buckets = uint64_t{1} << header.bucket_bits;
  header.entries_at = (header.buckets_at + (buckets + 1) * 4 + 7) / 8 * 8;
  std::string bytes(header.entries_at, '\0');
  memcpy(bytes.data() + sizeof header, packs.data(), packs.size() * 8);
  auto* starts = reinterpret_cast<uint32_t*>(bytes.data() + header.buckets_at);
  for (const IndexEntry& entry : entries) {
    ++starts[(header.bucket_bits == 0 ? 0 : entry.fingerprint >> (64 - header.bucket_bits)) + 1];
  }
  for (uint64_t i = 1; i <= buckets; ++i) starts[i] += starts[i - 1];
  bytes.append(reinterpret_cast<const char*>(entries.data()), entries.size() * sizeof(IndexEntry));
  header.body_checksum = Checksum(absl::string_view(bytes).substr(sizeof header));
  header.checksum = Checksum(&header, offsetof(IndexHeader, checksum));
  memcpy(bytes.data(), &header, sizeof header);

  RK_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file, CreateLocked(core->io(), /*direct=*/true, [&] {
                        return absl::StrCat(core->path(), "/tmp/", IndexFileName(header.index_id), ".",
                                            absl::Hex(NewFileId()));
                      }));
  const std::string temporary = file->path();
  auto write = [&]() -> absl::Status {
    constexpr size_t kBuffer = size_t{1} << 20;
    RK_ASSIGN_OR_RETURN(std::unique_ptr<WriteQueue> queue, file->NewWriteQueue(kBuffer, 4));
    for (size_t at = 0; at < bytes.size(); at += kBuffer) {
      RK_ASSIGN_OR_RETURN(WriteBuffer * buffer, queue->Acquire());
      size_t n = std::min(kBuffer, bytes.size() - at);
      size_t padded = DirectCeiling(n);
      memcpy(buffer->data, bytes.data() + at, n);
      memset(buffer->data + n, 0, padded - n);
      RK_RETURN_IF_ERROR(queue->Submit(buffer, padded, at));
    }
    RK_RETURN_IF_ERROR(queue->Drain());
    RK_RETURN_IF_ERROR(file->Truncate(bytes.size()));
    RK_RETURN_IF_ERROR(file->Sync());
    RK_RETURN_IF_ERROR(core->io()->Rename(temporary, core->index_path(header.index_id)));
    return core->io()->SyncDirectory(core->index_folder());
  };
  if (absl::Status status = write(); !status.ok()) {
    (void)core->io()->Unlink(temporary);
    (void)core->io()->Unlink(core->index_path(header.index_id));
    return status;
  }
  return NewIndexFile{{header.index_id, entries.size(), bytes.size()}, std::move(file)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<PageIndex>> PageIndex::Load(StoreCore* core) {
  auto index = std::make_unique<LoadedIndex>(core);
  RK_RETURN_IF_ERROR(index->Load());
  return std::unique_ptr<PageIndex>(std::move(index));
}

absl::Status MergeIndexes(StoreCore* core, bool all) {
  std::vector<PackRecord> packs;
  std::vector<IndexRecord> indexes;
  {
    RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core->catalog().Read());
    RK_ASSIGN_OR_RETURN(packs, txn.Packs());
    RK_ASSIGN_OR_RETURN(indexes, txn.Indexes());
  }
  std::set<uint64_t> merged_packs;
  uint64_t total = 0;
  for (const PackRecord& pack : packs) {
    if (pack.index_id != 0 || pack.pages == 0) continue;
    merged_packs.insert(pack.id);
    total += pack.pages;
  }
  if (merged_packs.empty() || (!all && merged_packs.size() <= kMaxLoosePacks)) return absl::OkStatus();
  std::sort(indexes.begin(), indexes.end(), [](auto& a, auto& b) { return a.entries < b.entries; });
  std::set<uint64_t> merged_indexes;
  for (const IndexRecord& index : indexes) {
    if (index.entries > total * kMergeFactor || total + index.entries > kMaxMergedEntries) break;
    merged_indexes.insert(index.id);
    total += index.entries;
    for (const PackRecord& pack : packs) {
      if (pack.index_id == index.id) merged_packs.insert(pack.id);
    }
  }

  std::map<uint64_t, std::vector<PackRecord>> to_collect;  // by the index file that covers them; 0: none
  for (const PackRecord& pack : packs) {
    if (merged_packs.count(pack.id)) to_collect[pack.index_id].push_back(pack);
  }
  std::vector<uint64_t> pack_ids;
  std::vector<IndexEntry> entries;
  entries.reserve(total);
  const auto merge_from = [&](size_t sorted) {
    std::inplace_merge(entries.begin(), entries.begin() + static_cast<ptrdiff_t>(sorted), entries.end(),
                       IsBefore);
  };
  // What is sorted already is most of it: the packs' own tables are read once only.
  for (const IndexRecord& index : indexes) {
    const size_t sorted = entries.size();
    if (merged_indexes.count(index.id) == 0 ||
        !CollectIndexFile(core, index, to_collect[index.id], pack_ids, entries)) {
      continue;
    }
    merge_from(sorted);
    to_collect.erase(index.id);
  }
  const size_t sorted = entries.size();
  for (const auto& [index, of_index] : to_collect) {
    for (const PackRecord& pack : of_index) {
      // One that can't be read is left to its own table, or to fsck.
      if (CollectPack(core, pack.id, static_cast<uint32_t>(pack_ids.size()), entries).ok())
        pack_ids.push_back(pack.id);
    }
  }
  std::sort(entries.begin() + static_cast<ptrdiff_t>(sorted), entries.end(), IsBefore);
  merge_from(sorted);
  RK_ASSIGN_OR_RETURN(NewIndexFile written, WriteIndexFile(core, pack_ids, entries));
  const IndexRecord& record = written.record;

  RK_RETURN_IF_ERROR(core->io()->BeforeCatalogCommit("merge of indexes"));
  absl::Status status = core->catalog().Update([&](Catalog::Txn& txn) -> absl::Status {
    RK_ASSIGN_OR_RETURN(std::vector<IndexRecord> now, txn.Indexes());
    size_t still = 0;
    for (const IndexRecord& index : now) still += merged_indexes.count(index.id);
    if (still != merged_indexes.size()) return absl::AbortedError("another process merged the index");
    for (uint64_t id : merged_indexes) RK_RETURN_IF_ERROR(txn.DeleteIndex(id));
    RK_RETURN_IF_ERROR(txn.PutIndex(record));
    RK_ASSIGN_OR_RETURN(std::vector<PackRecord> all_packs, txn.Packs());
    const std::set<uint64_t> in_file(pack_ids.begin(), pack_ids.end());
    // One that is in another file by now, or in none since pages of it were forgotten, stays so.
    std::map<uint64_t, uint64_t> before;
    for (const PackRecord& pack : packs) before[pack.id] = pack.index_id;
    for (PackRecord& pack : all_packs) {
      if (in_file.count(pack.id) && pack.index_id == before[pack.id]) {
        pack.index_id = record.id;
      } else if (merged_indexes.count(pack.index_id)) {
        pack.index_id = 0;
      } else {
        continue;
      }
      RK_RETURN_IF_ERROR(txn.PutPack(pack));
    }
    return absl::OkStatus();
  });
  if (!status.ok()) {
    RK_RETURN_IF_ERROR(core->io()->Unlink(core->index_path(record.id)));
    return absl::IsAborted(status) ? absl::OkStatus() : status;
  }
  for (uint64_t id : merged_indexes) RK_RETURN_IF_ERROR(core->io()->Unlink(core->index_path(id)));
  return absl::OkStatus();
}

absl::Status VerifyIndexFile(StoreCore* core, const IndexRecord& record) {
  RK_ASSIGN_OR_RETURN(std::unique_ptr<IndexFile> index, IndexFile::Open(core, record));
  if (!index->IsWhole()) {
    return absl::DataLossError(absl::StrCat("the index file ", core->index_path(record.id), " is damaged"));
  }
  return absl::OkStatus();
}

}  // namespace rekindle::store
