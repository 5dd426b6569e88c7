// May this image run here? Everything that can be known before anything is started.
#pragma once

#include <sys/types.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/file_rights.h"
#include "base/machine.h"
#include "criu/image_files.h"
#include "criu/installation.h"
#include "dedup_store/store.h"
#include "rekindle/v1/job_manifest.pb.h"

namespace rekindle::restore {

// Processor, kernel and CRIU. FailedPrecondition (kDoesNotFit) names every difference that matters.
absl::Status CheckMachine(const v1::JobManifest& manifest, const Machine& machine, const criu::Version& criu);

// Unimplemented: the image is one of the first process of a PID namespace, as an imported one of a container.
absl::Status CheckIsNoFirstProcess(const store::ImageInfo& image, const std::vector<criu::PstreeEntry>& tree);

// PIDs and thread ids that the image needs and somebody else has, as PID, process group or session. What is
// left of a job that was just killed (processes in their exit, orphans that end by themselves) is waited for,
// at most `patience`; Cancelled when `cancel_fd` (-1: none) becomes readable meanwhile. FailedPrecondition
// names the holders.
absl::Status CheckIdsAreFree(const std::vector<criu::PstreeEntry>& tree, int cancel_fd = -1,
                             absl::Duration patience = absl::Seconds(5));

// In the message of a restore that was refused for PIDs: later they may be free.
inline constexpr char kIdsInUse[] = "the job needs its own PIDs back";

// Whose files the calling thread sees: the machine's, or as the job will those of the container that it goes
// into.
enum class SeenFrom { kMachine, kContainer };

// Which of the files that a job needs: before a roll-back those that none can mend, since what that cuts off
// is cut off also when the restore is refused then. After a roll-back what has grown was left so, which is
// told.
enum class NeededFiles { kAll, kBeyondRollBack, kAfterRollBack };

// What becomes of a file that the job only reads, as long as it was and with another content: one that is
// mapped is refused and one that is only open is worth a warning, or all are, where a refusal would be the
// reason that the job is lost.
enum class EditedFiles { kRefuseMapped, kWarn };

// In the warning of such a file.
inline constexpr char kEditedSince[] = "was edited since the image was taken";

// Which says what can be done.
enum class CheckedFor { kRestore, kClone };

// Files that the job had open or mapped, and its working directory; what it was writing may have grown, which
// is worth a warning with the cure, unless it is a log that it appends to. FailedPrecondition names what is
// missing or has another size than it had. Looked up with the rights of `user`, nothing: our own; what lies
// where the user may not look is left out, and so are these `replaced` ones, which the job does not get.
// Those that are `cut_last` may have grown. What it only reads must be as it was, or have been appended to,
// but for what `edited` lets be and what lies at or below `ignored` paths.
absl::Status CheckFiles(const v1::JobManifest& manifest, const std::optional<Owner>& user,
                        std::vector<std::string>* warnings, SeenFrom place = SeenFrom::kMachine,
                        NeededFiles which = NeededFiles::kAll, const std::set<std::string>& replaced = {},
                        const std::set<std::string>& cut_last = {},
                        const std::vector<std::string>& ignored = {},
                        EditedFiles edited = EditedFiles::kRefuseMapped,
                        CheckedFor whom = CheckedFor::kRestore);

// Is it CheckFiles' refusal, whatever was put before its message?
bool IsRefusedForFiles(const absl::Status& status);

// In the message of a restore that was refused because a folder is gone that may come back: its file system
// may not be mounted now.
inline constexpr char kMakeFolder[] = "make that folder, or mount what it lies on";

// By its name and its folders: a package manager has put it there, and may be about to do so again. What
// programs compile for themselves (in /tmp, ~/.cache, ~/.triton) and clean away nobody puts back.
bool IsLibraryOfPackage(absl::string_view path);

// In the message of a restore that was refused for such libraries alone: a package may be in the making.
inline constexpr char kLibrariesMayComeBack[] =
    "libraries that are being replaced are there again in a moment";

// `above` is the last folder on the way to one that is gone. What was below one in which everybody may have
// something (/tmp) was for a while, and no place where file systems are mounted.
bool MayComeBack(int above);

// Unimplemented: it has mounts, as CRIU takes them from outside of a mount namespace, or is of a user
// namespace of its own.
absl::Status CheckHasNoOtherNamespaces(const store::ImageReader& image);
// As criu::RestoreOptions::own_mounts.
std::optional<unsigned long> OwnMounts(const store::ImageInfo& image);
// FailedPrecondition: it had some, and can't get others here.
absl::Status CheckCanHaveOwnMounts(const store::ImageInfo& image);

// Memory for `bytes` of pages, within the limits of the cgroups of `process` (0: of none), in which the job
// comes back. ResourceExhausted.
absl::Status CheckMemory(uint64_t bytes, pid_t process);

}  // namespace rekindle::restore
