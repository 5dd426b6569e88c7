#include "dedup_store/prepared.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "dedup_store/store_notes.h"

namespace rekindle::store {

namespace {

constexpr size_t kMaxIdLength = 128;

// The id and the reference to come, of a record whose reference begins with kPreparedPrefix.
std::pair<absl::string_view, absl::string_view> Split(absl::string_view reference) {
  reference.remove_prefix(kPreparedPrefix.size());
  const size_t end = reference.find(kPreparedPrefix);
  if (end == absl::string_view::npos) return {reference, ""};
  return {reference.substr(0, end), reference.substr(end + kPreparedPrefix.size())};
}

absl::StatusOr<ImageRecord> FindPrepared(Catalog::Txn& txn, absl::string_view id) {
  RK_ASSIGN_OR_RETURN(std::vector<ImageRecord> records, txn.WithReferencePrefix(PreparedReference(id, "")));
  if (records.empty()) return absl::NotFoundError(absl::StrCat("no image is prepared as ", id));
  return std::move(records.front());
}

}  // namespace

absl::Status CheckPreparedId(absl::string_view id) {
  bool fits = !id.empty() && id.size() <= kMaxIdLength;
  for (char c : id) fits = fits && (absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.');
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("'", id, "' names no prepared image: 1 to ", kMaxIdLength,
                                                 " letters, digits, '-', '_' and '.' do"));
}

std::string PreparedReference(absl::string_view id, absl::string_view reference) {
  return absl::StrCat(kPreparedPrefix, id, kPreparedPrefix, reference);
}

std::string ComingReference(const ImageInfo& prepared) {
  return std::string(Split(prepared.reference).second);
}

absl::Status NobodyPrepares(Catalog::Txn& txn, absl::string_view reference, absl::string_view id) {
  RK_ASSIGN_OR_RETURN(std::vector<ImageRecord> records, txn.WithReferencePrefix(kPreparedPrefix));
  for (const ImageRecord& record : records) {
    const auto [other, coming] = Split(record.info.reference);
    if (coming != reference && (id.empty() || other != id)) continue;
    return absl::AlreadyExistsError(absl::StrCat("an image that is stored but not yet decided about (", other,
                                                 ") is to become ", coming,
                                                 ". Choose another name, or wait for the decision."));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<PreparedImage>> ListPrepared(const StoreCore& core) {
  RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core.catalog().Read());
  RK_ASSIGN_OR_RETURN(std::vector<ImageRecord> records, txn.WithReferencePrefix(kPreparedPrefix));
  std::vector<PreparedImage> images;
  for (ImageRecord& record : records) {
    const auto [id, coming] = Split(record.info.reference);
    PreparedImage image{std::string(id), std::move(record.info)};
    image.info.reference = std::string(coming);
    images.push_back(std::move(image));
  }
  return images;
}

absl::StatusOr<ImageInfo> PublishPrepared(StoreCore& core, absl::string_view id) {
  RK_RETURN_IF_ERROR(core.CheckWritable());
  RK_RETURN_IF_ERROR(CheckPreparedId(id));
  RK_RETURN_IF_ERROR(core.io()->BeforeCatalogCommit("publication of an image"));
  ImageInfo published;
  absl::Status updated = core.catalog().Update([&](Catalog::Txn& txn) -> absl::Status {
    RK_ASSIGN_OR_RETURN(ImageRecord record, FindPrepared(txn, id));
    const std::string reference = ComingReference(record.info);
    RK_ASSIGN_OR_RETURN(std::optional<ImageRecord> taken, txn.FindReference(reference));
    // Nothing can come to the name of a prepared image: that one was published before the catalog was lost.
    if (taken && taken->id > record.id) {
      return absl::FailedPreconditionError(
          absl::StrCat("image ", reference, " is newer than the one that is prepared as ", id,
                       ", and is left as it is. A catalog that was made again takes images for prepared that "
                       "were replaced long ago: an abort (`rekindle group resolve GROUP-ID abort`) removes "
                       "this one"));
    }
    // It was to be replaced, and could be: else nothing would have been prepared under this name.
    if (taken) RK_RETURN_IF_ERROR(DeleteImageAndNotes(core, txn, *taken, record.info.digest));
    record.info.reference = reference;
    published = record.info;
    return txn.PutImage(record);
  });
  RK_RETURN_IF_ERROR(updated);
  return published;
}

absl::Status RemovePrepared(StoreCore& core, absl::string_view id) {
  RK_RETURN_IF_ERROR(core.CheckWritable());
  RK_RETURN_IF_ERROR(CheckPreparedId(id));
  RK_RETURN_IF_ERROR(core.io()->BeforeCatalogCommit("removal of a prepared image"));
  return core.catalog().Update([&](Catalog::Txn& txn) -> absl::Status {
    RK_ASSIGN_OR_RETURN(ImageRecord record, FindPrepared(txn, id));
    return DeleteImageAndNotes(core, txn, record);
  });
}

}  // namespace rekindle::store
