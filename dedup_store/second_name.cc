#include "dedup_store/second_name.h"

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace rekindle::store {
namespace {

absl::Status AddObject(const ImageReader& reader, const ObjectInfo& object, ImageWriter& writer) {
  if (!object.paged) {
    RK_ASSIGN_OR_RETURN(const std::string bytes, reader.ReadBlob(object.name));
    return writer.AddBlob(object.name, bytes);
  }
  RK_RETURN_IF_ERROR(writer.AddParentPages(object.name, 0, 0));  // one without pages is there too
  RK_ASSIGN_OR_RETURN(const std::vector<PageRun> runs, reader.Runs(object.name));
  for (const PageRun& run : runs) {
    if (!writer.ParentHas(object.name, run.address, run.pages)) {
      return absl::DataLossError(
          absl::StrCat("image ", reader.info().reference, ": the disk has damaged pages of ", object.name,
                       ", so it gets no second name; 'rekindle fsck --read' tells more"));
    }
    RK_RETURN_IF_ERROR(writer.AddParentPages(object.name, run.address, run.pages));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ImageInfo> AddSecondName(Store& store, const ImageInfo& image,
                                        const SecondNameOptions& options) {
  const auto cancelled = [&] { return options.cancel != nullptr && options.cancel->load(); };
  // Whoever has the name by now: content and digest are the same.
  RK_ASSIGN_OR_RETURN(const std::unique_ptr<ImageReader> reader, store.OpenImage(image.digest));
  NewImageOptions as;
  as.reference = options.reference;
  as.parent = image.digest;
  as.owner = options.owner;
  as.replace = options.replace;
  as.replace_others = options.replace_others;
  as.labels = options.labels;
  RK_ASSIGN_OR_RETURN(const std::unique_ptr<ImageWriter> writer, store.NewImage(as));
  for (const ObjectInfo& object : reader->objects()) {
    if (cancelled()) return absl::CancelledError("cancelled; there is no second name");
    RK_RETURN_IF_ERROR(AddObject(*reader, object, *writer));
  }
  return writer->Commit([&](uint64_t, uint64_t) { return !cancelled(); });
}

}  // namespace rekindle::store
