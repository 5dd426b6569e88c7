// How a job's image is laid out in the store: the names of its objects. Part of the on-disk format
// (docs/image-layout.md).
#pragma once

namespace rekindle::v1 {

// Blob: the serialised JobManifest.
inline constexpr char kJobManifestObject[] = "rekindle/job";
// Prefix of blobs: CRIU's image files, but for the pages images.
inline constexpr char kCriuFilePrefix[] = "criu/";
// Prefixes of paged objects: memory of a task by address; shared memory by offset; and, where a pages image
// has no pagemap that could address it, the image itself by file offset.
inline constexpr char kTaskMemoryPrefix[] = "mem/";
inline constexpr char kSharedMemoryPrefix[] = "shm/";
inline constexpr char kRawPagesPrefix[] = "pages/";
// Prefix of paged objects: content of a file that the job rewrote in place, by offset; no page where it has a
// hole.
inline constexpr char kFileContentPrefix[] = "files/";
// Blob: contents of what lay in folders for temporary files that were the job's own (TemporaryFiles).
inline constexpr char kTemporaryContents[] = "rekindle/temporary";
// Begins the paths that shared memory without a name has while a job is being restored.
inline constexpr char kNamelessPrefix[] = "/dev/shm/rekindle-nameless.";
// Labels of the store's catalog.
inline constexpr char kJobIdLabel[] = "rekindle.job-id";
inline constexpr char kJobNameLabel[] = "rekindle.job-name";
// The mark that its processes carry, if it is of a supervised job or of what was restored from one's image
// (daemon/job_mark.h). The daemon's word alone.
inline constexpr char kJobMarkLabel[] = "rekindle.job-mark";
// When the supervised job was submitted whose image it is.
inline constexpr char kSupervisedLabel[] = "rekindle.supervised";
// When it was submitted first, if it has gone on from an image since.
inline constexpr char kSupervisedFirstLabel[] = "rekindle.supervised-first";
// The number of that image among those of its job.
inline constexpr char kSupervisedNumberLabel[] = "rekindle.supervised-number";
// With any value: somebody has asked for it, and the supervisor does not remove it.
inline constexpr char kSupervisedAskedLabel[] = "rekindle.supervised-asked";
// With any value: the job ended with it, and a firewall's table may hold back what its peers send
// (criu/connection_lock.h).
inline constexpr char kConnectionLockLabel[] = "rekindle.connection-lock";
// The job had a mount namespace of its own, in which all was mounted as where the image was taken: how its
// root mount hears of other mounts (kPrivateMounts, …). A restore makes it another one.
inline constexpr char kOwnMountsLabel[] = "rekindle.own-mounts";
inline constexpr char kPrivateMounts[] = "private";
inline constexpr char kSlaveMounts[] = "slave";
inline constexpr char kSharedMounts[] = "shared";
inline constexpr char kCommandLabel[] = "rekindle.command";
// Of an image that came from another store: its digest where it was taken.
inline constexpr char kOriginLabel[] = "rekindle.origin";
// Of a group's images: the group's id and name, the member's number, and where its coordinator answers.
inline constexpr char kGroupIdLabel[] = "rekindle.group-id";
inline constexpr char kGroupLabel[] = "rekindle.group";
inline constexpr char kGroupMemberLabel[] = "rekindle.group-member";
inline constexpr char kGroupCoordinatorLabel[] = "rekindle.group-coordinator";
// The coordinator's store (Store::id): another one knows nothing of the group, which says nothing.
inline constexpr char kGroupCoordinatorStoreLabel[] = "rekindle.group-coordinator-store";
// With any value: its job (kJobIdLabel) ends when it is published.
inline constexpr char kGroupEndsJobLabel[] = "rekindle.group-ends-job";
// The machine whose daemon settles it, which may not be the only one with this store.
inline constexpr char kGroupMachineLabel[] = "rekindle.group-machine";

}  // namespace rekindle::v1
