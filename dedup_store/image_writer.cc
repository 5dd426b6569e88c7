#include "dedup_store/image_writer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "dedup_store/image_commit.h"
#include "dedup_store/limit_guard.h"
#include "dedup_store/prepared.h"

namespace rekindle::store {

namespace {

constexpr size_t kMaxObjectName = 4096;
constexpr uint64_t kMostImagePages = 0xfffffffe;
// From so many zero pages of the parent on, to note them as such takes less than to note where each is.
constexpr uint64_t kLeastZeros = 64;

class ImageWriterImpl : public ImageWriter {
 public:
  ImageWriterImpl(std::shared_ptr<StoreCore> core, NewImageOptions options,
                  std::unique_ptr<ImageReaderImpl> parent)
      : core_(std::move(core)),
        options_(std::move(options)),
        parent_(std::move(parent)),
        commit_(NewImageCommit(core_, options_, parent_.get(), content_)) {}

  absl::Status AddBlob(absl::string_view name, absl::string_view bytes) override {
    RK_RETURN_IF_ERROR(CheckName(name));
    if (object_by_name_.contains(std::string(name)) ||
        !blob_by_name_.try_emplace(std::string(name), content_.blobs.size()).second) {
      return absl::AlreadyExistsError(absl::StrCat("the image has an object '", name, "' already"));
    }
    content_.blobs.push_back({std::string(name), std::string(bytes)});
    return absl::OkStatus();
  }

  absl::Status AddPages(absl::string_view name, uint64_t address,
                        absl::Span<const std::byte> pages) override {
    if (pages.size() % kPageSize != 0) return NotWholePages(name);
    return AddRange(name, address, {0, pages.data(), pages.size() / kPageSize, 0, false});
  }

  absl::Status AddZeroPages(absl::string_view name, uint64_t address, uint64_t pages) override {
    return AddRange(name, address, {0, nullptr, pages, 0, true});
  }

  std::string parent_digest() const override { return parent_ ? parent_->info().digest : ""; }

  bool ParentHas(absl::string_view name, uint64_t address, uint64_t pages) const override {
    return parent_ != nullptr && parent_->HasPages(name, address, pages);
  }

  absl::Status AddParentPages(absl::string_view name, uint64_t address, uint64_t pages) override {
    if (!ParentHas(name, address, pages)) {
      return absl::FailedPreconditionError(absl::StrCat("object '", name, "': the parent does not have all ",
                                                        pages, " pages at ", absl::Hex(address)));
    }
    if (pages == 0 || address % kPageSize != 0) return AddRange(name, address, {});
    // What the parent has of zeros may be without end.
    const std::vector<Extent>& extents = *parent_->FindExtents(name);
    const uint64_t end = address / kPageSize + pages;
    uint64_t page = address / kPageSize;
    for (auto e = FirstBehind(extents, page); e != extents.end() && e->page < end; ++e) {
      const uint64_t from = std::max(page, e->page), until = std::min(end, e->page + e->pages);
      if (!e->zero() || until - from < kLeastZeros) continue;
      RK_RETURN_IF_ERROR(AddRange(name, page * kPageSize, {0, nullptr, from - page, 0, false}));
      RK_RETURN_IF_ERROR(AddRange(name, from * kPageSize, {0, nullptr, until - from, 0, true}));
      page = until;
    }
    return AddRange(name, page * kPageSize, {0, nullptr, end - page, 0, false});
  }

  absl::StatusOr<ImageInfo> Commit(std::function<bool(uint64_t, uint64_t)> progress,
                                   std::function<absl::Status()> still_held) override {
    if (committed_) return absl::FailedPreconditionError("the image was committed already");
    committed_ = true;
    return std::exchange(commit_, nullptr)->Finish(progress, still_held);
  }

 private:
  static absl::Status NotWholePages(absl::string_view name) {
    return absl::InvalidArgumentError(absl::StrCat("object '", name, "': pages are added at whole pages"));
  }

  // Of `range` the place is to be filled in.
  absl::Status AddRange(absl::string_view name, uint64_t address, ContentRange range) {
    RK_RETURN_IF_ERROR(CheckName(name));
    if (address % kPageSize != 0) return NotWholePages(name);
    if (blob_by_name_.contains(std::string(name))) {
      return absl::AlreadyExistsError(absl::StrCat("the image has a blob '", name, "' already"));
    }
    auto [it, inserted] = object_by_name_.try_emplace(std::string(name), content_.objects.size());
    if (inserted) content_.objects.push_back({std::string(name), {}});
    if (range.pages == 0) return absl::OkStatus();
    std::vector<ContentRange>& ranges = content_.objects[it->second].ranges;
    range.page = address / kPageSize;
    range.first_ordinal = static_cast<uint32_t>(content_.ordinals());
    if (!ranges.empty() && range.page < ranges.back().page + ranges.back().pages) {
      return absl::InvalidArgumentError(absl::StrCat("object '", name, "': addresses must ascend"));
    }
    if (range.pages > kMostImagePages || content_.total_pages + range.pages > kMostImagePages)
      return absl::InvalidArgumentError("an image has at most 16 TiB");
    content_.total_pages += range.pages;
    if (range.zero) content_.zero_pages += range.pages;
    ranges.push_back(range);
    return options_.coming_bytes > 0 && !range.zero ? commit_->StoreEarly(name, range) : absl::OkStatus();
  }

  absl::Status CheckName(absl::string_view name) const {
    if (committed_) return absl::FailedPreconditionError("the image was committed already");
    if (name.empty() || name.size() > kMaxObjectName) {
      return absl::InvalidArgumentError(absl::StrCat("an object's name has 1 to ", kMaxObjectName, " bytes"));
    }
    return absl::OkStatus();
  }

  const std::shared_ptr<StoreCore> core_;
  const NewImageOptions options_;
  const std::unique_ptr<ImageReaderImpl> parent_;
  bool committed_ = false;
  ImageContent content_;
  std::unique_ptr<ImageCommit> commit_;
  absl::flat_hash_map<std::string, size_t> object_by_name_, blob_by_name_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ImageWriter>> NewImageWriter(std::shared_ptr<StoreCore> core,
                                                            const NewImageOptions& options) {
  RK_RETURN_IF_ERROR(core->CheckWritable());
  NewImageOptions normalized = options;
  RK_ASSIGN_OR_RETURN(normalized.reference, NormalizeReference(options.reference));
  if (!options.prepared_id.empty()) RK_RETURN_IF_ERROR(CheckPreparedId(options.prepared_id));
  {
    RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core->catalog().Read());
    RK_ASSIGN_OR_RETURN(std::optional<ImageRecord> taken, txn.FindReference(normalized.reference));
    if (taken) RK_RETURN_IF_ERROR(MayTakeReference(options, taken->info));
    RK_RETURN_IF_ERROR(NobodyPrepares(txn, normalized.reference, normalized.prepared_id));
  }
  // What can be told before anything is done: whoever waits for the image learns it while his job still runs.
  RK_RETURN_IF_ERROR(Annotate(LimitGuard::Begin(core.get(), normalized).status(),
                              absl::StrCat("beginning image ", normalized.reference)));
  std::unique_ptr<ImageReaderImpl> parent;
  if (!options.parent.empty()) {
    RK_ASSIGN_OR_RETURN(ImageRecord record, core->Resolve(options.parent));
    RK_ASSIGN_OR_RETURN(parent, ImageReaderImpl::Open(core, std::move(record)));
  }
  return std::make_unique<ImageWriterImpl>(std::move(core), std::move(normalized), std::move(parent));
}

}  // namespace rekindle::store
