"""Makes a video grey, frame by frame."""

import hashlib
import os
import tempfile

import cv2

INPUTS = os.environ.get("FUNCTION_INPUTS", "/tmp/function-inputs")


def handler(event, context):
    path = os.path.join(INPUTS, event.get("video", "video.avi"))
    limit = int(event.get("frames", 1000))
    video = cv2.VideoCapture(path)
    if not video.isOpened():
        raise FileNotFoundError(f"{path} is no video that can be read")
    width, height = int(video.get(cv2.CAP_PROP_FRAME_WIDTH)), int(video.get(cv2.CAP_PROP_FRAME_HEIGHT))
    digest = hashlib.sha256()
    frames = 0
    with tempfile.TemporaryDirectory() as folder:
        target = os.path.join(folder, "grey.avi")
        out = cv2.VideoWriter(target, cv2.VideoWriter_fourcc(*"MJPG"), 20.0, (width, height))
        while frames < limit:
            more, frame = video.read()
            if not more:
                break
            grey = cv2.cvtColor(frame, cv2.COLOR_BGR2GRAY)
            out.write(cv2.cvtColor(grey, cv2.COLOR_GRAY2BGR))
            digest.update(grey.tobytes())
            frames += 1
        video.release()
        out.release()
        written = os.path.getsize(target)
    return {"frames": frames, "size": [width, height], "written": written, "digest": digest.hexdigest()}
