// Notes beside images: files notes/DIGEST.KIND of what is known about an image and can be learned
// again. One that is lost or damaged harms no image.
//
// A note goes with the last image of its digest, in the transaction that removes it. What is put at the very
// moment in which its image goes can be left behind; gc takes that.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dedup_store/catalog.h"
#include "dedup_store/store_core.h"

namespace rekindle::store {

// See Store::PutNote, GetNote, OpenNote, RemoveNote and HasNotes.
absl::Status PutNote(StoreCore& core, const ImageInfo& image, absl::string_view kind,
                     absl::Span<const absl::string_view> parts);
absl::StatusOr<std::string> GetNote(StoreCore& core, absl::string_view digest, absl::string_view kind);
absl::StatusOr<std::unique_ptr<NoteReader>> OpenNote(StoreCore& core, absl::string_view digest,
                                                     absl::string_view kind);
absl::Status RemoveNote(StoreCore& core, absl::string_view digest, absl::string_view kind);
absl::StatusOr<bool> HasNotes(const StoreCore& core, absl::string_view kind);

// Takes an image out of the catalog; its notes go when it was the last of its digest and `heir`, a digest, is
// another one.
absl::Status DeleteImageAndNotes(StoreCore& core, Catalog::Txn& txn, const ImageRecord& image,
                                 absl::string_view heir = "");

std::string NotesFolder(const StoreCore& core);
// Is it the name of a file of notes/, whichever kind of note that may be?
bool IsNoteName(absl::string_view name);
// What they take on disk. One that goes meanwhile may be left out.
absl::StatusOr<uint64_t> MeasureNotes(StoreCore& core);

struct NoteProblem {
  std::string path;
  std::string sentence;
};
// The files of notes/ that belong to no image.
absl::StatusOr<std::vector<NoteProblem>> OrphanedNotes(StoreCore& core);
// These, and the notes that are damaged. Of large ones only the beginning is looked at unless `read_all`.
// `unclear` gets the first error that tells nothing of a note. What it has when `*cancel` is set.
absl::StatusOr<std::vector<NoteProblem>> CheckNotes(StoreCore& core, bool read_all, absl::Status& unclear,
                                                    const std::atomic<bool>* cancel = nullptr);

}  // namespace rekindle::store
