#include "dedup_store/page_index.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "absl/base/call_once.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "dedup_store/index_file.h"
#include "dedup_store/page_table.h"

namespace rekindle::store {

namespace {

// As look-ups need it: mapped.
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
    if (!IsHeaderOfIndex(h, record.id, size)) return damaged();
    index->pack_ids_ = {reinterpret_cast<const uint64_t*>(bytes.data() + sizeof h), h.packs};
    index->buckets_ = {reinterpret_cast<const uint32_t*>(bytes.data() + h.buckets_at),
                       (uint64_t{1} << h.bucket_bits) + 1};
    index->entries_ = {reinterpret_cast<const IndexEntry*>(bytes.data() + h.entries_at), h.entries};
    return index;
  }

  // A part of the file can't be read: none of it is to be used.
  bool lost() const { return mapping_->lost(); }
  const IndexHeader& header() const { return header_; }
  absl::Span<const uint64_t> pack_ids() const { return pack_ids_; }

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
  uint64_t BucketOf(uint64_t fingerprint) const { return IndexBucketOf(fingerprint, header_.bucket_bits); }

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
    // They are in the order of their ids.
    const auto index_of = [&packs](uint64_t pack) {
      const auto found =
          std::lower_bound(packs.begin(), packs.end(), pack,
                           [](const PackRecord& record, uint64_t id) { return record.id < id; });
      return found == packs.end() || found->id != pack ? 0 : found->index_id;
    };
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
      for (size_t i = 0; i < ids.size(); ++i) files_.back().packs[i].covered = index_of(ids[i]) == record.id;
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

}  // namespace

absl::StatusOr<std::unique_ptr<PageIndex>> PageIndex::Load(StoreCore* core) {
  auto index = std::make_unique<LoadedIndex>(core);
  RK_RETURN_IF_ERROR(index->Load());
  return std::unique_ptr<PageIndex>(std::move(index));
}

}  // namespace rekindle::store
