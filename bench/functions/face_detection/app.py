"""Finds the faces in a video's frames with a Haar cascade."""

import hashlib
import json
import os

import cv2

INPUTS = os.environ.get("FUNCTION_INPUTS", "/tmp/function-inputs")
CASCADES = "/usr/share/opencv4/haarcascades"


def handler(event, context):
    path = os.path.join(INPUTS, event.get("video", "faces.avi"))
    limit = int(event.get("frames", 1000))
    cascade = cv2.CascadeClassifier(os.path.join(CASCADES, event.get("cascade", "haarcascade_frontalface_default.xml")))
    video = cv2.VideoCapture(path)
    if not video.isOpened():
        raise FileNotFoundError(f"{path} is no video that can be read")
    found = []
    while len(found) < limit:
        more, frame = video.read()
        if not more:
            break
        grey = cv2.cvtColor(frame, cv2.COLOR_BGR2GRAY)
        # The cascade runs in several threads, which find the faces in any order.
        found.append(sorted([int(number) for number in face] for face in cascade.detectMultiScale(grey, 1.3, 5)))
    video.release()
    digest = hashlib.sha256(json.dumps(found).encode()).hexdigest()
    return {"frames": len(found), "faces": sum(map(len, found)), "digest": digest}
