"""Generation of rollouts: conversion of messages to tokens, workflows, and the runner of concurrent rollouts."""
