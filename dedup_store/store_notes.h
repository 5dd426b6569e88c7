// Notes beside images: small files notes/DIGEST.KIND of what is known about an image and can be learned
// again. One that is lost or damaged harms no image.
//
// A note goes with the last image of its digest, in the transaction that removes it. What is put at the very
// moment in which its image goes can be left behind; gc takes that.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dedup_store/catalog.h"
#include "dedup_store/store_core.h"

namespace rekindle::store {

// See Store::PutNote, GetNote and RemoveNote.
absl::Status PutNote(StoreCore& core, const ImageInfo& image, absl::string_view kind,
                     absl::string_view bytes);
absl::StatusOr<std::string> GetNote(StoreCore& core, absl::string_view digest, absl::string_view kind);
absl::Status RemoveNote(StoreCore& core, absl::string_view digest, absl::string_view kind);

// Takes an image out of the catalog; its notes go when it was the last of its digest and `heir`, a digest, is
// another one.
absl::Status DeleteImageAndNotes(StoreCore& core, Catalog::Txn& txn, const ImageRecord& image,
                                 absl::string_view heir = "");

struct NoteProblem {
  std::string path;
  std::string sentence;
};
// The files of notes/ that belong to no image.
absl::StatusOr<std::vector<NoteProblem>> OrphanedNotes(StoreCore& core);
// These, and the notes that are damaged. `unclear` gets the first error that tells nothing of a note.
absl::StatusOr<std::vector<NoteProblem>> CheckNotes(StoreCore& core, absl::Status& unclear);

}  // namespace rekindle::store
